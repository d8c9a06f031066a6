"""Architecture name -> model."""

from __future__ import annotations

from typing import get_args

import torch

from pagewire.checkpoint.model_config import Activation, ModelConfig
from pagewire.ipc.errors import ConfigError

from ..compute_dtype import compute_dtype
from ..kernels.ops import Ops
from ..layers.build_context import BuildContext
from ..parallel.share import WHOLE, Share
from ..quantization.select import select_quant_method
from .base import Model
from .gemma2 import Gemma2ForCausalLM
from .gemma3 import Gemma3ForCausalLM
from .granite import GraniteForCausalLM
from .llama import LlamaForCausalLM
from .mistral import MistralForCausalLM
from .mixtral import MixtralForCausalLM
from .phi3 import Phi3ForCausalLM
from .qwen2 import Qwen2ForCausalLM
from .qwen3 import Qwen3ForCausalLM
from .qwen3_moe import Qwen3MoeForCausalLM

_MODELS: dict[str, type[LlamaForCausalLM]] = {
    "Gemma2ForCausalLM": Gemma2ForCausalLM,
    "Gemma3ForCausalLM": Gemma3ForCausalLM,
    "GraniteForCausalLM": GraniteForCausalLM,
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": MistralForCausalLM,
    "MixtralForCausalLM": MixtralForCausalLM,
    "Phi3ForCausalLM": Phi3ForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
    "Qwen3MoeForCausalLM": Qwen3MoeForCausalLM,
}


def build_model(
    config: ModelConfig,
    ops: Ops,
    *,
    dtype: torch.dtype | None,
    device: torch.device,
    max_model_len: int | None = None,
    share: Share = WHOLE,
    stage: Share = WHOLE,
    divides_experts: bool = False,
) -> Model:
    """Build a model with undefined weights, or a rank's part of it; `load_weights` fills them.

    Args:
        config: the checkpoint's facts.
        ops: the kernels that its layers call.
        dtype: of dense weights, and of activations unless the kernels want them in float32; None: each weight as the
            checkpoint stores it, which only such kernels allow.
        device: where it lives.
        max_model_len: the longest context that will be served; None: the longest that the model was made for.
        share: this rank's part of each layer, among the ranks that `ops` has joined.
        stage: its part of the layers.
        divides_experts: the ranks divide the experts of a mixture, instead of every expert.

    Raises:
        ConfigError: if the architecture or its activation is not supported.
    """
    assert (share.rank, share.size) == (ops.ranks.rank, ops.ranks.size), "layers are divided by those who add them up"
    model = _MODELS.get(config.architecture)
    if model is None:
        known = ", ".join(_MODELS)
        raise ConfigError(f"{config.model_path}: architecture {config.architecture!r} is unknown; known are {known}")
    if config.hidden_act not in get_args(Activation):
        known = ", ".join(get_args(Activation))
        raise ConfigError(f"{config.model_path}: activation {config.hidden_act!r} is unknown; known are {known}")
    context = BuildContext(
        ops=ops,
        quant_method=select_quant_method(config, ops),
        dtype=compute_dtype(dtype, ops),
        weight_dtype=dtype,
        device=device,
        share=share,
        stage=stage,
        divides_experts=divides_experts,
    )
    return model(config, context, max_model_len or config.max_position)
