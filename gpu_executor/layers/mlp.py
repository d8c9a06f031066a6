"""The gated feed-forward block."""

from __future__ import annotations

from collections.abc import Iterator

from pagewire.checkpoint.model_config import ModelConfig

from ..kernels.layouts import MLPWeights
from .build_context import BuildContext
from .linear import FusedLinear, RowParallelLinear, Shard
from .rms_norm import RMSNorm
from .weight_target import WeightTarget


class MLP:
    """norm -> gate and up -> gating -> down -> (norm). Ranks divide the channels between.

    Args:
        prefix: canonical name of the decoder layer ("model.layers.0").
        config: sizes, epsilon, activation, biases.
        context: ops, quantization method, dtype, device and this rank's share.
        has_fused_gate_up: the checkpoint holds the two projections as one, `gate_up_proj`.
        norm: name of the module in the layer that norms the block's input.
        post_norm: name of the one that norms its output; None: there is none.
    """

    def __init__(
        self,
        prefix: str,
        config: ModelConfig,
        context: BuildContext,
        *,
        has_fused_gate_up: bool = False,
        norm: str = "post_attention_layernorm",
        post_norm: str | None = None,
    ) -> None:
        name, hidden_size, intermediate_size = f"{prefix}.mlp", config.hidden_size, config.intermediate_size
        self.activation = config.hidden_act
        self.output_scale = config.residual_scale
        self.norm = RMSNorm(f"{prefix}.{norm}", hidden_size, config, context)
        self.post_norm = RMSNorm(f"{prefix}.{post_norm}", hidden_size, config, context) if post_norm else None
        gate = context.share.of(intermediate_size)
        shards: tuple[Shard, ...] = tuple(Shard(name, intermediate_size, (gate,)) for name in ("gate_proj", "up_proj"))
        if has_fused_gate_up:
            up = range(gate.start + intermediate_size, gate.stop + intermediate_size)
            shards = (Shard("gate_up_proj", 2 * intermediate_size, (gate, up)),)
        self.gate_up = FusedLinear(name, shards, hidden_size, has_bias=config.mlp_bias, context=context)
        self.down = RowParallelLinear(
            name, "down_proj", hidden_size, intermediate_size, has_bias=config.mlp_bias, context=context
        )

    @property
    def linears(self) -> tuple[FusedLinear | RowParallelLinear, ...]:
        """The projections, in the order of their products."""
        return (self.gate_up, self.down)

    @property
    def modules(self) -> tuple[str, ...]:
        """Canonical names of the projections."""
        return (*self.gate_up.modules, *self.down.modules)

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this block."""
        yield from self.norm.weight_targets()
        yield from self.gate_up.weight_targets()
        yield from self.down.weight_targets()
        if self.post_norm is not None:
            yield from self.post_norm.weight_targets()

    def weights(self) -> MLPWeights:
        """Gather the loaded parameters for the kernels: `Ops.mlp_block` runs them."""
        return MLPWeights(
            norm=self.norm.weight,
            norm_eps=self.norm.eps,
            gate_up=self.gate_up.weight,
            down=self.down.weight,
            activation=self.activation,
            post_norm=self.post_norm.weight if self.post_norm else None,
            output_scale=self.output_scale,
        )
