"""ModelConfig out of a Hugging Face directory: config.json, and what generation_config.json and tokenizer.json add.

Defaults of absent keys are those of the family's own configuration class; what has no sane default is required by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pagewire.ipc.errors import ConfigError

from ..json_reader import JSONReader, read_json_object
from ..model_config import MAX_LAYERS, Activation, ModelConfig
from ..quantization.read_config import read_quantization
from ..safetensors_index import read_tensor_table
from .attention_windows import read_attention_windows
from .families import FAMILIES, Family, find_architecture
from .rope_config import check_frequency_factors, read_rope_config
from .tokenizer_facts import read_tokenizer_facts

_DTYPES = ("float32", "float16", "bfloat16")
# By their names in configurations.
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def read_hf_config(directory: Path) -> ModelConfig:
    """Read the configuration of a Hugging Face checkpoint directory.

    Raises:
        ConfigError: if a file is unreadable, a key missing or impossible, or the architecture or one of its options is
            not supported. The message names the file and the key.
    """
    config = read_json_object(directory / "config.json")
    architecture = find_architecture(config)
    family = FAMILIES[architecture]
    if config.get_bool("use_bidirectional_attention", False):
        raise config.fault("use_bidirectional_attention", "is true; only models that generate text are supported")
    num_layers = _num_layers(config)
    num_heads, num_kv_heads = _num_heads(config)
    hidden_size = config.require_int("hidden_size")
    head_dim = _head_dim(config, family, hidden_size, num_heads)
    layer_kinds, sliding_window = read_attention_windows(config, family, num_layers)
    rope = read_rope_config(config, family.rope)
    rotary_dim = int(head_dim * rope.partial_rotary_factor)
    check_frequency_factors(config, rope.scaling, rotary_dim)
    vocab_size = config.require_int("vocab_size")
    tokenizer = read_tokenizer_facts(directory)
    # Ids that the embedding has no row for can't be sampled either.
    tokenizer_size = min(tokenizer.size, vocab_size) if tokenizer else vocab_size
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
        rms_norm_eps=config.get_positive_float("rms_norm_eps") or family.default_rms_norm_eps,
        rope_theta=rope.theta,
        rotary_dim=rotary_dim,
        max_position=rope.max_position,
        dtype=_dtype(config, directory),
        layer_kinds=layer_kinds,
        rope_scaling=rope.scaling,
        local_rope_theta=rope.local_theta,
        sliding_window=sliding_window,
        tie_word_embeddings=config.get_bool("tie_word_embeddings", family.default_tie_word_embeddings),
        qk_norm=family.qk_norm,
        norm_weight_offset=family.norm_weight_offset,
        has_float32_norms=family.has_float32_norms,
        hidden_act=_activation(config, family),
        bos_token_id=bos_token_ids[0] if bos_token_ids else None,
        eos_token_ids=_eos_token_ids(config, directory, tokenizer.eos_token_id if tokenizer else None, tokenizer_size),
        mixture=family.read_mixture(config, num_layers),
        quantization=read_quantization(config),
        **_biases(config, family),
        **msgspec.structs.asdict(family.read_scalars(config)),
    )


def _biases(config: JSONReader, family: Family) -> dict[str, Any]:  # fields of ModelConfig
    attention_bias = config.get_bool("attention_bias", False)
    return {
        "qkv_bias": attention_bias if family.qkv_bias is None else family.qkv_bias,
        "output_bias": attention_bias if family.output_bias is None else family.output_bias,
        "mlp_bias": family.has_mlp_bias_key and config.get_bool("mlp_bias", False),
    }


def _num_layers(config: JSONReader) -> int:
    num_layers = config.require_int("num_hidden_layers")
    if num_layers > MAX_LAYERS:
        raise config.fault("num_hidden_layers", f"is {num_layers}; at most {MAX_LAYERS} can be")
    return num_layers


def _num_heads(config: JSONReader) -> tuple[int, int]:
    num_heads = config.require_int("num_attention_heads")
    num_kv_heads = config.get_int("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise config.fault("num_attention_heads", f"is {num_heads}, not a multiple of {num_kv_heads} key-value heads")
    return num_heads, num_kv_heads


def _head_dim(config: JSONReader, family: Family, hidden_size: int, num_heads: int) -> int:
    head_dim = config.get_int("head_dim") or family.default_head_dim
    if head_dim is not None:
        return head_dim
    if hidden_size % num_heads:
        raise config.fault("hidden_size", f"is {hidden_size}, not a multiple of {num_heads} heads, and no head_dim is")
    return hidden_size // num_heads


def _activation(config: JSONReader, family: Family) -> Activation:
    stated = config.get_str(family.activation_key, family.default_activation)
    if stated not in _ACTIVATIONS:
        raise config.fault(family.activation_key, f"is {stated!r}; supported are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[stated]


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
