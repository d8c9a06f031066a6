"""ModelConfig out of GGUF metadata and the tensor table.

Biases, norms on queries and keys, and tied embeddings are not metadata in GGUF: the tensors that are there say so.
"""

from __future__ import annotations

import msgspec

from pagewire.ipc.errors import ConfigError

from .ggml_types import GGMLType
from .gguf_file import GGUFFile
from .gguf_header import GGUFArray
from .gguf_metadata.attention_windows import read_attention_windows
from .gguf_metadata.mixtures import ROUTER, read_mixture
from .gguf_metadata.numbers import positive_float, positive_int, short_float
from .gguf_metadata.rope import read_local_theta, read_rope_scaling
from .gguf_metadata.scalars import read_scalars
from .hugging_face.rope_config import scaled_max_position
from .model_config import MAX_LAYERS, ModelConfig

# Mistral files carry the architecture "llama" too: the layers are the same, a window is metadata.
_ARCHITECTURES = {
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "llama": "LlamaForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
_GEMMA = ("gemma2", "gemma3")
KNOWN_GGUF_ARCHITECTURES = tuple(_ARCHITECTURES)

_PACKED = "quantized"
_PLAIN_DTYPES = {GGMLType.F32: "float32", GGMLType.F16: "float16", GGMLType.BF16: "bfloat16"}
_UNUSED_TOKEN = 5  # tokenizer.ggml.token_type of rows that only pad the embedding
_END_OF_TURN = "<end_of_turn>"
_NO_TOKEN = 0xFFFFFFFF  # how some writers say that a special token is not set


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """Read the configuration of an open GGUF model.

    Raises:
        ConfigError: if metadata is missing or impossible, or the architecture or one of its options is not supported.
    """
    name = _architecture_name(file)
    num_layers = _num_layers(file, name)
    num_heads = _per_layer(file, f"{name}.attention.head_count")
    num_kv_heads = _per_layer(file, f"{name}.attention.head_count_kv", default=num_heads)
    if num_heads % num_kv_heads:
        raise ConfigError(f"{file.path}: {num_heads} heads are not a multiple of {num_kv_heads} key-value heads")
    hidden_size = positive_int(file, f"{name}.embedding_length")
    head_dim = positive_int(file, f"{name}.attention.key_length", hidden_size // num_heads)
    if file.get_int(f"{name}.attention.value_length", head_dim) != head_dim:
        raise ConfigError(f"{file.path}: keys and values of different head sizes are not supported")
    rotary_dim = positive_int(file, f"{name}.rope.dimension_count", head_dim)
    context_length = positive_int(file, f"{name}.context_length")
    scaling = read_rope_scaling(file, name, context_length, rotary_dim)
    scalars = read_scalars(file, name, num_layers=num_layers, num_heads=num_heads, head_dim=head_dim)
    layer_kinds, sliding_window = read_attention_windows(file, name, num_layers)
    vocab_size = _vocab_size(file)
    tokenizer_size = min(_tokenizer_size(file, vocab_size), vocab_size)
    dtype, main_type = _dtype(file), file.main_type()
    mixture = read_mixture(file, name, num_layers)
    return ModelConfig(
        architecture="MixtralForCausalLM" if name == "llama" and mixture is not None else _ARCHITECTURES[name],
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
        rms_norm_eps=short_float(positive_float(file, f"{name}.attention.layer_norm_rms_epsilon")),
        rope_theta=positive_float(file, f"{name}.rope.freq_base", 10_000.0),
        rotary_dim=rotary_dim,
        # Gemma 3 states the stretched length.
        max_position=context_length if name == "gemma3" else scaled_max_position(context_length, scaling),
        dtype=dtype,
        packed_type=main_type.name if main_type is not None and dtype == _PACKED else None,
        layer_kinds=layer_kinds,
        rope_scaling=scaling,
        local_rope_theta=read_local_theta(file, name),
        sliding_window=sliding_window,
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        has_float32_norms=name in _GEMMA,
        hidden_act="gelu_tanh" if name in _GEMMA else "silu",
        bos_token_id=_token_id(file, "bos", vocab_size),
        eos_token_ids=_eos_token_ids(file, vocab_size, tokenizer_size),
        mixture=mixture,
        **msgspec.structs.asdict(scalars),
    )


def _architecture_name(file: GGUFFile) -> str:
    name = file.require_str("general.architecture")
    if name not in _ARCHITECTURES:
        raise ConfigError(
            f"{file.path}: the architecture {name!r} is not supported; supported are {', '.join(_ARCHITECTURES)}"
        )
    return name


def _num_layers(file: GGUFFile, name: str) -> int:
    num_layers = positive_int(file, f"{name}.block_count")
    if num_layers > MAX_LAYERS:
        raise ConfigError(f"{file.path}: {name}.block_count is {num_layers}; at most {MAX_LAYERS} can be")
    return num_layers


def _vocab_size(file: GGUFFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ConfigError(f"{file.path}: lacks the matrix token_embd.weight")
    return embedding.shape[0]


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
    return positive_int(file, key)


def _dtype(file: GGUFFile) -> str:
    # Routers are in float32 whatever the rest is.
    types = {tensor.ggml_type for name, tensor in file.tensors.items() if len(tensor.shape) > 1 and ROUTER not in name}
    return _PLAIN_DTYPES.get(types.pop(), _PACKED) if len(types) == 1 else _PACKED


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
    ids = [_token_id(file, role, vocab_size) for role in ("eos", "eot", "eom")]
    if file.metadata["general.architecture"] in _GEMMA:
        ids.append(_end_of_turn(file))
    return tuple(dict.fromkeys(value for value in ids if value is not None and value < tokenizer_size))


def _end_of_turn(file: GGUFFile) -> int | None:
    # Gemma's files name the end of the text alone, and its answers end with the turn: llama.cpp goes by its spelling.
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return tokens.find(_END_OF_TURN) if isinstance(tokens, GGUFArray) else None
