"""The gated feed-forward block."""

from __future__ import annotations

from collections.abc import Iterator

from pagewire.checkpoint.model_config import ModelConfig

from ..kernels.layouts import MLPWeights
from .build_context import BuildContext
from .linear import FusedLinear, Linear, Shard
from .rms_norm import RMSNorm
from .weight_target import WeightTarget


class MLP:
    """norm -> gate and up -> SiLU gating -> down.

    Args:
        prefix: canonical name of the decoder layer ("model.layers.0").
        config: sizes, epsilon, biases.
        context: ops, quantization method, dtype and device.
    """

    def __init__(self, prefix: str, config: ModelConfig, context: BuildContext) -> None:
        name, hidden_size, intermediate_size = f"{prefix}.mlp", config.hidden_size, config.intermediate_size
        self.norm = RMSNorm(f"{prefix}.post_attention_layernorm", hidden_size, config.rms_norm_eps, context)
        self.gate_up = FusedLinear(
            name,
            (Shard("gate_proj", intermediate_size), Shard("up_proj", intermediate_size)),
            hidden_size,
            has_bias=config.mlp_bias,
            context=context,
        )
        self.down = Linear(name, "down_proj", hidden_size, intermediate_size, has_bias=config.mlp_bias, context=context)

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this block."""
        yield from self.norm.weight_targets()
        yield from self.gate_up.weight_targets()
        yield from self.down.weight_targets()

    def weights(self) -> MLPWeights:
        """Gather the loaded parameters for the kernels: `Ops.mlp_block` runs them."""
        return MLPWeights(
            norm=self.norm.weight, norm_eps=self.norm.eps, gate_up=self.gate_up.weight, down=self.down.weight
        )
