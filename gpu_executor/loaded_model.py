"""A model with its weights, and what is made to fit it: the paged tensors of its layers, and the steps of a profile."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pagewire.ipc.errors import MachineError

from .batch.kv_cache import KVCache, bytes_per_block
from .kv_scales import KVScales, choose_scales
from .load_plan import LoadPlan
from .memory import check_weights_fit
from .models.base import Model
from .models.registry import build_model
from .parallel.peers import Peers
from .profile_run import ProfileRun
from .sampling.pending import Drawing
from .weights import load_weights

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, or a rank's part of it.

    Attributes:
        plan: what was chosen for it.
        model: ready to run.
        kv_scales: of this stage's layers.
        weight_bytes: what its weights take.
    """

    plan: LoadPlan
    model: Model
    kv_scales: Sequence[KVScales]
    weight_bytes: int

    @classmethod
    def load(cls, plan: LoadPlan, peers: Peers, *, other_bytes: int = 0) -> LoadedModel:
        """Build a model and read its weights.

        Args:
            plan: what to load, and how.
            peers: who has the other parts.
            other_bytes: what the weights of models take that were loaded before, beside which it is to fit.

        Raises:
            ConfigError: the checkpoint and the model do not match.
            MachineError: it does not fit.
        """
        model = _build(plan, peers)
        share, memory = plan.config.cache.gpu_memory_utilization, plan.device.memory()
        # Others that share the memory may have read theirs already: what is free is not divided yet.
        memory = replace(memory.divided(plan.num_sharing), free_bytes=memory.free_bytes + other_bytes)
        sizes: list[int] = []

        def check_size(num_bytes: int) -> None:
            check_weights_fit(other_bytes + num_bytes, plan.dtypes, share, memory)
            logger.info("weights: %.1f MB in memory; %s", num_bytes / 1e6, plan.dtypes)
            sizes.append(num_bytes)

        load_weights(
            model,
            plan.model,
            load_format=plan.config.model.load_format,
            num_threads=plan.num_threads,
            check_size=check_size,
        )
        all_scales = choose_scales(model.kv_scales(), plan.kv_dtype, plan.model.model_path)
        scales = all_scales[model.stage_layers.start : model.stage_layers.stop]
        return cls(plan, model, scales, sum(sizes))

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block over all layers."""
        return bytes_per_block(self.model.kv_cache_specs(), self.plan.config.cache.block_size, self.plan.kv_dtype)

    def make_kv_cache(self, num_blocks: int) -> KVCache:
        """Allocate the paged tensors of its layers.

        Raises:
            MachineError: the device does not give the memory.
        """
        return KVCache(
            self.model.kv_cache_specs(),
            num_blocks=num_blocks,
            block_size=self.plan.config.cache.block_size,
            dtype=self.plan.kv_dtype,
            device=self.plan.device.torch_device,
            ops=self.plan.ops,
            scales=self.kv_scales,
        )

    def make_profile_run(self, sampler: Drawing, graph_logits: Tensor | None = None) -> ProfileRun:
        """Return its largest steps; see `ProfileRun`."""
        plan = self.plan
        device = plan.device.torch_device
        return ProfileRun(
            self.model,
            sampler,
            self.make_kv_cache(2),
            plan.limits,
            max_model_len=plan.max_model_len,
            device=device,
            stream=torch.zeros(1, plan.model.hidden_size, dtype=plan.dtype, device=device),
            graph_logits=graph_logits,
        )


def _build(plan: LoadPlan, peers: Peers) -> Model:
    device = plan.device.torch_device
    try:
        return build_model(
            plan.model,
            plan.ops,
            dtype=plan.weight_dtype,
            device=device,
            max_model_len=plan.max_model_len,
            share=peers.share,
            stage=peers.stage,
            divides_experts=plan.config.parallel.enable_expert_parallel,
        )
    except RuntimeError as exc:  # torch's answer when an allocation fails
        raise MachineError(
            f"Can't allocate the weights of {plan.model.model_path} and a rotary table of {plan.max_model_len} "
            f"positions on {device}: lower --max-model-len, give a smaller --dtype, serve a smaller model, or free "
            "memory."
        ) from exc
