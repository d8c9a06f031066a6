"""The families whose config.json is understood: one table of what distinguishes them.

Values named `default_` hold where the key is absent; they are those of the family's own configuration class.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from ..json_reader import JSONReader
from ..mixture import Mixture
from .mixtures import mixtral_mixture, no_mixture, qwen3_mixture
from .rope_config import PLAIN_ROPE, RopeDefaults
from .scalars import Scalars, gemma2_scalars, gemma3_scalars, granite_scalars, no_scalars


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What distinguishes a family's config.json."""

    model_type: str
    qkv_bias: bool | None = None  # None: attention_bias says so
    output_bias: bool | None = None
    has_mlp_bias_key: bool = False
    qk_norm: bool = False
    default_rms_norm_eps: float = 1e-6
    norm_weight_offset: float = 0.0
    has_float32_norms: bool = False
    activation_key: str = "hidden_act"
    default_activation: str = "silu"
    default_tie_word_embeddings: bool = False
    default_head_dim: int | None = None  # None: hidden_size / num_attention_heads
    default_window: int | None = None
    window_needs_switch: bool = False  # use_sliding_window is false unless stated
    window_on_all_layers: bool = False  # without layer_types; otherwise from max_window_layers on
    window_needs_layer_types: bool = False  # a sliding_window alone means nothing
    default_window_period: int | None = None  # without layer_types: every so many layers one attends fully, the last
    rope: RopeDefaults = PLAIN_ROPE
    read_scalars: Callable[[JSONReader], Scalars] = no_scalars
    read_mixture: Callable[[JSONReader, int], Mixture | None] = no_mixture  # of so many layers


_GEMMA = Family(
    model_type="",
    norm_weight_offset=1.0,
    has_float32_norms=True,
    activation_key="hidden_activation",
    default_activation="gelu_pytorch_tanh",
    default_tie_word_embeddings=True,
    default_head_dim=256,
    default_window=4096,
)

FAMILIES = {
    "Gemma2ForCausalLM": replace(_GEMMA, model_type="gemma2", default_window_period=2, read_scalars=gemma2_scalars),
    "Gemma3ForCausalLM": replace(
        _GEMMA,
        model_type="gemma3_text",
        qk_norm=True,
        default_window_period=6,
        rope=RopeDefaults(theta=1e6, local_theta=10_000.0, has_stretched_length=True),
        read_scalars=gemma3_scalars,
    ),
    "GraniteForCausalLM": Family(
        model_type="granite", has_mlp_bias_key=True, window_needs_layer_types=True, read_scalars=granite_scalars
    ),
    "LlamaForCausalLM": Family(model_type="llama", has_mlp_bias_key=True, window_needs_layer_types=True),
    "MistralForCausalLM": Family(
        model_type="mistral", qkv_bias=False, output_bias=False, default_window=4096, window_on_all_layers=True
    ),
    "MixtralForCausalLM": Family(
        model_type="mixtral",
        qkv_bias=False,
        output_bias=False,
        default_rms_norm_eps=1e-5,
        window_on_all_layers=True,
        rope=RopeDefaults(theta=1e6),
        read_mixture=mixtral_mixture,
    ),
    "Phi3ForCausalLM": Family(
        model_type="phi3", qkv_bias=False, output_bias=False, default_rms_norm_eps=1e-5, window_on_all_layers=True
    ),
    "Qwen2ForCausalLM": Family(
        model_type="qwen2", qkv_bias=True, output_bias=False, default_window=4096, window_needs_switch=True
    ),
    "Qwen3ForCausalLM": Family(
        model_type="qwen3", qk_norm=True, default_head_dim=128, default_window=4096, window_needs_switch=True
    ),
    "Qwen3MoeForCausalLM": Family(
        model_type="qwen3_moe",
        qk_norm=True,
        default_window=4096,
        window_needs_switch=True,
        read_mixture=qwen3_mixture,
    ),
}


# What is known and yet not served, and why.
_REFUSED = {
    "Gemma3ForConditionalGeneration": (
        "reads images too, and only text models are supported; serve a text-only conversion (Gemma3ForCausalLM), or "
        "the text model as a GGUF file"
    ),
}
_REFUSED_MODEL_TYPES = {"gemma3": "Gemma3ForConditionalGeneration"}


def find_architecture(config: JSONReader) -> str:
    """Return the architecture that a config.json names: a key of `FAMILIES`.

    Raises:
        ConfigError: if it names none that is supported.
    """
    names = config.get_str_list("architectures")
    if names is None:
        model_type = config.get_str("model_type")
        names = [name for name, family in FAMILIES.items() if family.model_type == model_type]
        if model_type in _REFUSED_MODEL_TYPES:
            names = [_REFUSED_MODEL_TYPES[model_type]]
        if not names:
            raise config.missing("architectures")
    for name in names:
        if name in FAMILIES:
            return name
        if name in _REFUSED:
            raise config.fault("architectures", f"is {names}; {name} {_REFUSED[name]}")
    raise config.fault("architectures", f"is {names}; supported are {', '.join(FAMILIES)}")
