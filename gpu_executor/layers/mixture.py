"""A mixture of experts in place of the feed-forward block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from pagewire.checkpoint.model_config import ModelConfig

from ..kernels.layouts import ExpertWeights, MixtureWeights
from ..parallel.share import WHOLE
from .build_context import BuildContext
from .linear import FusedLinear, RowParallelLinear, Shard
from .rms_norm import RMSNorm
from .weight_target import WeightTarget


class MixtureNames(NamedTuple):
    """What a family's checkpoints call the parts of a mixture.

    Attributes:
        module: the module in the layer; its router is `gate`, its experts are `experts.0`, `experts.1`, ...
        gate: an expert's gate projection; `up` and `down` likewise.
    """

    module: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


class MixtureBlock:
    """norm -> router -> a few experts a token, weighed and added.

    Ranks divide the channels of every expert, or, by `BuildContext.divides_experts`, the experts. All hold the router.

    Args:
        prefix: canonical name of the decoder layer ("model.layers.0").
        config: sizes, epsilon, activation, the mixture.
        context: ops, quantization method, dtype, device and this rank's share.
        names: as the family's checkpoints have them.
        norm: name of the module in the layer that norms the block's input.
    """

    def __init__(
        self,
        prefix: str,
        config: ModelConfig,
        context: BuildContext,
        *,
        names: MixtureNames,
        norm: str = "post_attention_layernorm",
    ) -> None:
        mixture = config.mixture
        assert mixture is not None, "a mixture is built where the configuration has one"
        self._mixture = mixture
        self._activation = config.hidden_act
        module = f"{prefix}.{names.module}"
        self.norm = RMSNorm(f"{prefix}.{norm}", config.hidden_size, config, context)
        self.router = FusedLinear(
            module, (Shard("gate", mixture.num_experts),), config.hidden_size, has_bias=False, context=context
        )
        every = range(mixture.num_experts)
        self._here = context.share.of_nearly_even(mixture.num_experts) if context.divides_experts else every
        of_one = replace(context, share=WHOLE) if context.divides_experts else context
        self.experts = [
            Expert(f"{module}.experts.{index}", config, of_one if index in self._here else context.elsewhere(), names)
            for index in every
        ]

    @property
    def linears(self) -> tuple[FusedLinear | RowParallelLinear, ...]:
        """The projections of the experts that are here, by expert."""
        here = self.experts[self._here.start : self._here.stop]
        return tuple(linear for expert in here for linear in (expert.gate_up, expert.down))

    @property
    def modules(self) -> tuple[str, ...]:
        """Canonical names of what may be quantized: the experts' projections, and by convention not the router."""
        return tuple(name for expert in self.experts for name in expert.modules)

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this block."""
        yield from self.norm.weight_targets()
        yield from self.router.weight_targets()
        for expert in self.experts:
            yield from expert.weight_targets()

    def weights(self) -> MixtureWeights:
        """Gather the loaded parameters for the kernels: `Ops.mixture_block` runs them."""
        return MixtureWeights(
            norm=self.norm.weight,
            norm_eps=self.norm.eps,
            router=self.router.weight,
            experts=tuple(expert.weights() for expert in self.experts[self._here.start : self._here.stop]),
            first_expert=self._here.start,
            num_chosen=self._mixture.num_chosen,
            is_renormalized=self._mixture.is_renormalized,
            activation=self._activation,
        )


class Expert:
    """gate and up -> gating -> down, without a norm of its own.

    Args:
        prefix: canonical name of the expert's module.
        config: sizes, the mixture.
        context: ops, quantization method, dtype, device and this rank's share of the expert.
        names: of its projections.
    """

    def __init__(self, prefix: str, config: ModelConfig, context: BuildContext, names: MixtureNames) -> None:
        assert config.mixture is not None, "experts belong to a mixture"
        size = config.mixture.intermediate_size
        mine = context.share.of(size)
        shards = (Shard(names.gate, size, (mine,)), Shard(names.up, size, (mine,)))
        self.gate_up = FusedLinear(prefix, shards, config.hidden_size, has_bias=False, context=context)
        self.down = RowParallelLinear(prefix, names.down, config.hidden_size, size, has_bias=False, context=context)

    @property
    def modules(self) -> tuple[str, ...]:
        """Canonical names of the projections."""
        return (*self.gate_up.modules, *self.down.modules)

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this expert."""
        yield from self.gate_up.weight_targets()
        yield from self.down.weight_targets()

    def weights(self) -> ExpertWeights:
        """Gather the loaded parameters."""
        return ExpertWeights(gate_up=self.gate_up.weight, down=self.down.weight)
