"""ModelConfig out of GGUF metadata and the tensor table.

Biases, norms on queries and keys, and tied embeddings are not metadata in GGUF: the tensors that are there say so.
"""

from __future__ import annotations

import math

from pagewire.ipc.errors import ConfigError

from .ggml_types import GGMLType
from .gguf_file import GGUFFile
from .gguf_header import GGUFArray, ValueType
from .hugging_face.rope_config import scaled_max_position
from .model_config import MAX_LAYERS, LayerKind, ModelConfig, RopeScaling

# Mistral files carry the architecture "llama" too: the layers are the same, a window is metadata.
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
KNOWN_GGUF_ARCHITECTURES = tuple(_ARCHITECTURES)

_PLAIN_DTYPES = {GGMLType.F32: "float32", GGMLType.F16: "float16", GGMLType.BF16: "bfloat16"}
_UNUSED_TOKEN = 5  # tokenizer.ggml.token_type of rows that only pad the embedding
_NO_TOKEN = 0xFFFFFFFF  # how some writers say that a special token is not set


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """Read the configuration of an open GGUF model.

    Raises:
        ConfigError: if metadata is missing or impossible, or the architecture or one of its options is not supported.
    """
    name = file.require_str("general.architecture")
    architecture = _ARCHITECTURES.get(name)
    if architecture is None:
        raise ConfigError(
            f"{file.path}: the architecture {name!r} is not supported; supported are {', '.join(_ARCHITECTURES)}"
        )
    if file.get_int(f"{name}.expert_count", 0):
        raise ConfigError(f"{file.path}: is a mixture of experts, which is not supported")
    num_layers = _num_layers(file, name)
    num_heads = _per_layer(file, f"{name}.attention.head_count")
    num_kv_heads = _per_layer(file, f"{name}.attention.head_count_kv", default=num_heads)
    if num_heads % num_kv_heads:
        raise ConfigError(f"{file.path}: {num_heads} heads are not a multiple of {num_kv_heads} key-value heads")
    hidden_size = _positive(file, f"{name}.embedding_length")
    head_dim = _positive(file, f"{name}.attention.key_length", hidden_size // num_heads)
    if file.get_int(f"{name}.attention.value_length", head_dim) != head_dim:
        raise ConfigError(f"{file.path}: keys and values of different head sizes are not supported")
    rotary_dim = _positive(file, f"{name}.rope.dimension_count", head_dim)
    context_length = _positive(file, f"{name}.context_length")
    scaling = _rope_scaling(file, name, context_length, rotary_dim)
    layer_kinds, sliding_window = _attention_windows(file, name, num_layers)
    vocab_size = _vocab_size(file)
    tokenizer_size = min(_tokenizer_size(file, vocab_size), vocab_size)
    return ModelConfig(
        architecture=architecture,
        model_path=str(file.path),
        file_format="gguf",
        vocab_size=vocab_size,
        tokenizer_size=tokenizer_size,
        hidden_size=hidden_size,
        intermediate_size=_per_layer(file, f"{name}.feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=_short_float(_positive_float(file, f"{name}.attention.layer_norm_rms_epsilon")),
        rope_theta=_positive_float(file, f"{name}.rope.freq_base", 10_000.0),
        rotary_dim=rotary_dim,
        max_position=scaled_max_position(context_length, scaling),
        dtype=_dtype(file),
        layer_kinds=layer_kinds,
        rope_scaling=scaling,
        sliding_window=sliding_window,
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        bos_token_id=_token_id(file, "bos", vocab_size),
        eos_token_ids=_eos_token_ids(file, vocab_size, tokenizer_size),
    )


def _num_layers(file: GGUFFile, name: str) -> int:
    num_layers = _positive(file, f"{name}.block_count")
    if num_layers > MAX_LAYERS:
        raise ConfigError(f"{file.path}: {name}.block_count is {num_layers}; at most {MAX_LAYERS} can be")
    return num_layers


def _vocab_size(file: GGUFFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ConfigError(f"{file.path}: lacks the matrix token_embd.weight")
    return embedding.shape[0]


def _positive(file: GGUFFile, key: str, default: int | None = None) -> int:
    value = file.require_int(key) if default is None else file.get_int(key, default) or default
    if value < 1:
        raise ConfigError(f"{file.path}: {key} is {value}, must be at least 1")
    return value


def _positive_float(file: GGUFFile, key: str, default: float | None = None) -> float:
    value = file.require_float(key) if default is None else file.get_float(key, default) or default
    if not 0 < value < math.inf:
        raise ConfigError(f"{file.path}: {key} is {value}, must be a number above 0")
    return value


def _per_layer(file: GGUFFile, key: str, default: int | None = None) -> int:
    """Read a size that may be one number or one number per layer; only equal ones are supported."""
    if isinstance(file.metadata.get(key), GGUFArray):
        values = set(file.get_ints(key) or ())
        if len(values) != 1:
            raise ConfigError(f"{file.path}: {key} differs between layers, which is not supported")
        value = values.pop()
        if value < 1:
            raise ConfigError(f"{file.path}: {key} is {value}, must be at least 1")
        return value
    if default is not None and key not in file.metadata:
        return default
    return _positive(file, key)


def _rope_scaling(file: GGUFFile, name: str, context_length: int, rotary_dim: int) -> RopeScaling | None:
    prefix = f"{name}.rope.scaling"
    kind = file.get_str(f"{prefix}.type", "none")
    original = _positive(file, f"{prefix}.original_context_length", context_length)
    if kind == "none":
        factors = _frequency_factors(file, rotary_dim)
        if not factors:
            return None
        return RopeScaling(kind="llama3", original_max_position=original, frequency_factors=factors)
    if "rope_freqs.weight" in file.tensors:
        raise ConfigError(f"{file.path}: has both {kind} rotary scaling and rope_freqs.weight, which is not supported")
    factor = _positive_float(file, f"{prefix}.factor")
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor, original_max_position=context_length)
    if kind == "yarn":
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_max_position=original,
            beta_fast=_positive_float(file, f"{prefix}.yarn_beta_fast", 32.0),
            beta_slow=_positive_float(file, f"{prefix}.yarn_beta_slow", 1.0),
            attention_factor=_yarn_attention_factor(file, prefix, factor),
        )
    raise ConfigError(f"{file.path}: the rotary scaling {kind!r} is not known; known are none, linear, yarn")


def _yarn_attention_factor(file: GGUFFile, prefix: str, factor: float) -> float | None:
    # GGUF states a multiple of the paper's factor, Hugging Face the product.
    multiple = file.get_float(f"{prefix}.yarn_attn_factor") or file.get_float(f"{prefix}.attn_factor")
    if multiple is None or multiple == 1.0:
        return None
    return multiple * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)


def _frequency_factors(file: GGUFFile, rotary_dim: int) -> tuple[float, ...]:
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None:
        return ()
    if tensor.ggml_type is not GGMLType.F32 or tensor.shape != (rotary_dim // 2,):
        raise ConfigError(
            f"{file.path}: rope_freqs.weight is {tensor.ggml_type.name} {list(tensor.shape)}, "
            f"must be F32 [{rotary_dim // 2}]"
        )
    with file.tensor_bytes("rope_freqs.weight") as data, data.cast("f") as values:
        return tuple(values.tolist())


def _attention_windows(file: GGUFFile, name: str, num_layers: int) -> tuple[tuple[LayerKind, ...], int | None]:
    window = file.get_int(f"{name}.attention.sliding_window", 0) or 0
    if window < 0:
        raise ConfigError(f"{file.path}: {name}.attention.sliding_window is {window}, must be at least 0")
    if window == 0:
        return (LayerKind.FULL,) * num_layers, None
    key = f"{name}.attention.sliding_window_pattern"
    pattern = file.metadata.get(key)
    if pattern is None:
        is_sliding = [True] * num_layers
    elif isinstance(pattern, GGUFArray):
        if pattern.element_type is ValueType.STRING or len(pattern) < num_layers:
            raise ConfigError(f"{file.path}: {key} must have a truth value for each of {num_layers} layers")
        is_sliding = [bool(value) for value in pattern.to_list()[:num_layers]]
    else:
        period = file.require_int(key)  # every period-th layer attends fully; 0: none does
        if period < 0:
            raise ConfigError(f"{file.path}: {key} is {period}, must be at least 0")
        is_sliding = [period == 0 or layer % period < period - 1 for layer in range(num_layers)]
    kinds = tuple(LayerKind.SLIDING if sliding else LayerKind.FULL for sliding in is_sliding)
    return kinds, window if LayerKind.SLIDING in kinds else None


def _dtype(file: GGUFFile) -> str:
    types = {tensor.ggml_type for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return _PLAIN_DTYPES.get(types.pop(), "quantized") if len(types) == 1 else "quantized"


def _tokenizer_size(file: GGUFFile, vocab_size: int) -> int:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, GGUFArray):
        return vocab_size
    size = len(tokens)
    # Converters fill the vocabulary up to the embedding's rows; those ids stand for no text.
    types = file.get_ints("tokenizer.ggml.token_type") or []
    while 0 < size <= len(types) and types[size - 1] == _UNUSED_TOKEN:
        size -= 1
    return size


def _token_id(file: GGUFFile, role: str, vocab_size: int) -> int | None:
    value = file.get_int(f"tokenizer.ggml.{role}_token_id")
    if value is None or value == _NO_TOKEN:
        return None
    if not 0 <= value < vocab_size:
        raise ConfigError(
            f"{file.path}: tokenizer.ggml.{role}_token_id is {value}, the vocabulary ends at {vocab_size}"
        )
    return value


def _eos_token_ids(file: GGUFFile, vocab_size: int, tokenizer_size: int) -> tuple[int, ...]:
    # End of text, of turn and of message: each ends an answer. One that only pads the embedding can't be drawn.
    ids = (_token_id(file, role, vocab_size) for role in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(value for value in ids if value is not None and value < tokenizer_size))


def _short_float(value: float) -> float:
    """Undo the rounding of a decimal fraction to fp32 (9.999999747378752e-06 was written as 1e-05)."""
    return float(f"{value:.7g}")
