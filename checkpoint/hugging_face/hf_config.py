"""ModelConfig out of a Hugging Face directory: config.json, and what generation_config.json and tokenizer.json add.

Defaults of absent keys are those of the family's own configuration class; what has no sane default is required by name.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from pagewire.ipc.errors import ConfigError

from ..json_reader import JSONReader, read_json_object
from ..model_config import MAX_LAYERS, LayerKind, ModelConfig
from ..quantization.read_config import read_quantization
from ..safetensors_index import read_tensor_table
from .rope_config import read_rope_config
from .tokenizer_facts import read_tokenizer_facts

_DTYPES = ("float32", "float16", "bfloat16")
_LAYER_KINDS = {"full_attention": LayerKind.FULL, "sliding_attention": LayerKind.SLIDING}


class _Family(msgspec.Struct, frozen=True, kw_only=True):
    """What distinguishes a family's config.json. `default_` values hold where the key is absent."""

    model_type: str
    qkv_bias: bool | None = None  # None: attention_bias says so
    output_bias: bool | None = None
    has_mlp_bias_key: bool = False
    qk_norm: bool = False
    default_head_dim: int | None = None  # None: hidden_size / num_attention_heads
    default_window: int | None = None
    window_needs_switch: bool = False  # use_sliding_window is false unless stated
    window_on_all_layers: bool = False  # without layer_types; otherwise from max_window_layers on
    window_needs_layer_types: bool = False  # a sliding_window alone means nothing


_FAMILIES = {
    "LlamaForCausalLM": _Family(model_type="llama", has_mlp_bias_key=True, window_needs_layer_types=True),
    "MistralForCausalLM": _Family(
        model_type="mistral", qkv_bias=False, output_bias=False, default_window=4096, window_on_all_layers=True
    ),
    "Qwen2ForCausalLM": _Family(
        model_type="qwen2", qkv_bias=True, output_bias=False, default_window=4096, window_needs_switch=True
    ),
    "Qwen3ForCausalLM": _Family(
        model_type="qwen3", qk_norm=True, default_head_dim=128, default_window=4096, window_needs_switch=True
    ),
}
KNOWN_ARCHITECTURES = tuple(_FAMILIES)
_DEFAULT_MAX_WINDOW_LAYERS = 28


def read_hf_config(directory: Path) -> ModelConfig:
    """Read the configuration of a Hugging Face checkpoint directory.

    Raises:
        ConfigError: if a file is unreadable, a key missing or impossible, or the architecture or one of its options is
            not supported. The message names the file and the key.
    """
    config = read_json_object(directory / "config.json")
    architecture = _architecture(config)
    family = _FAMILIES[architecture]
    num_layers = config.require_int("num_hidden_layers")
    if num_layers > MAX_LAYERS:
        raise config.fault("num_hidden_layers", f"is {num_layers}; at most {MAX_LAYERS} can be")
    num_heads = config.require_int("num_attention_heads")
    num_kv_heads = config.get_int("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise config.fault("num_attention_heads", f"is {num_heads}, not a multiple of {num_kv_heads} key-value heads")
    hidden_size = config.require_int("hidden_size")
    head_dim = _head_dim(config, family, hidden_size, num_heads)
    hidden_act = config.get_str("hidden_act", "silu")
    if hidden_act != "silu":
        raise config.fault("hidden_act", f"is {hidden_act!r}; only 'silu' is supported")
    layer_kinds, sliding_window = _attention_windows(config, family, num_layers)
    rope = read_rope_config(config)
    vocab_size = config.require_int("vocab_size")
    tokenizer = read_tokenizer_facts(directory)
    # Ids that the embedding has no row for can't be sampled either.
    tokenizer_size = min(tokenizer.size, vocab_size) if tokenizer else vocab_size
    attention_bias = config.get_bool("attention_bias", False)
    bos_token_ids = config.get_token_ids("bos_token_id")
    return ModelConfig(
        architecture=architecture,
        model_path=str(directory),
        file_format="safetensors",
        vocab_size=vocab_size,
        tokenizer_size=tokenizer_size,
        hidden_size=hidden_size,
        intermediate_size=config.require_int("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=config.get_positive_float("rms_norm_eps") or 1e-6,
        rope_theta=rope.theta,
        rotary_dim=int(head_dim * rope.partial_rotary_factor),
        max_position=rope.max_position,
        dtype=_dtype(config, directory),
        layer_kinds=layer_kinds,
        rope_scaling=rope.scaling,
        sliding_window=sliding_window,
        tie_word_embeddings=config.get_bool("tie_word_embeddings", False),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=family.has_mlp_bias_key and config.get_bool("mlp_bias", False),
        qk_norm=family.qk_norm,
        hidden_act=hidden_act,
        bos_token_id=bos_token_ids[0] if bos_token_ids else None,
        eos_token_ids=_eos_token_ids(config, directory, tokenizer.eos_token_id if tokenizer else None, tokenizer_size),
        quantization=read_quantization(config),
    )


def _architecture(config: JSONReader) -> str:
    names = config.get_str_list("architectures")
    if names is None:
        model_type = config.get_str("model_type")
        names = [name for name, family in _FAMILIES.items() if family.model_type == model_type]
        if not names:
            raise config.missing("architectures")
    for name in names:
        if name in _FAMILIES:
            return name
    raise config.fault("architectures", f"is {names}; supported are {', '.join(KNOWN_ARCHITECTURES)}")


def _head_dim(config: JSONReader, family: _Family, hidden_size: int, num_heads: int) -> int:
    head_dim = config.get_int("head_dim") or family.default_head_dim
    if head_dim is not None:
        return head_dim
    if hidden_size % num_heads:
        raise config.fault("hidden_size", f"is {hidden_size}, not a multiple of {num_heads} heads, and no head_dim is")
    return hidden_size // num_heads


def _attention_windows(
    config: JSONReader, family: _Family, num_layers: int
) -> tuple[tuple[LayerKind, ...], int | None]:
    window = config.get_int("sliding_window")
    if not config.has("sliding_window"):  # null, unlike an absent key, says that there is none
        window = family.default_window
    if not config.get_bool("use_sliding_window", not family.window_needs_switch):
        window = None
    kinds = _layer_kinds(config, family, num_layers) if window is not None else (LayerKind.FULL,) * num_layers
    return kinds, window if LayerKind.SLIDING in kinds else None


def _layer_kinds(config: JSONReader, family: _Family, num_layers: int) -> tuple[LayerKind, ...]:
    stated = config.get_str_list("layer_types")
    if stated is not None:
        if len(stated) != num_layers:
            raise config.fault("layer_types", f"has {len(stated)} entries for {num_layers} layers")
        unknown = sorted(set(stated) - _LAYER_KINDS.keys())
        if unknown:
            raise config.fault("layer_types", f"has {unknown[0]!r}; known are {', '.join(_LAYER_KINDS)}")
        return tuple(_LAYER_KINDS[name] for name in stated)
    if family.window_needs_layer_types:
        return (LayerKind.FULL,) * num_layers
    if family.window_on_all_layers:
        return (LayerKind.SLIDING,) * num_layers
    first = config.get_int("max_window_layers", _DEFAULT_MAX_WINDOW_LAYERS, minimum=0) or 0
    return tuple(LayerKind.SLIDING if layer >= first else LayerKind.FULL for layer in range(num_layers))


def _dtype(config: JSONReader, directory: Path) -> str:
    for key in ("dtype", "torch_dtype"):
        name = config.get_str(key)
        if name is not None:
            name = name.removeprefix("torch.")
            if name not in _DTYPES:
                raise config.fault(key, f"is {name!r}; supported are {', '.join(_DTYPES)}")
            return name
    # An older configuration may not say: the weights do.
    stored = {location.dtype for location in read_tensor_table(directory).values()}
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    found = [name for code, name in names.items() if code in stored]
    if not found:
        raise ConfigError(f"{directory}: has no dtype in config.json, and its tensors are {', '.join(sorted(stored))}")
    return found[0]


def _eos_token_ids(
    config: JSONReader, directory: Path, tokenizer_eos: int | None, tokenizer_size: int
) -> tuple[int, ...]:
    # Each source may know an end that the others lack: fine-tunes often change only one of them.
    ids = list(config.get_token_ids("eos_token_id"))
    generation_path = directory / "generation_config.json"
    if generation_path.is_file():
        ids += read_json_object(generation_path).get_token_ids("eos_token_id")
    if tokenizer_eos is not None:
        ids.append(tokenizer_eos)
    # A cut vocabulary may leave ids of the full one behind. They can't be drawn, and no request may name them.
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id < tokenizer_size))
