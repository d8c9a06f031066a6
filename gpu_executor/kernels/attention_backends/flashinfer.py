"""FlashInfer's paged attention (package flashinfer-python, version 0.2 and up).

Source: FlashInfer, Ye et al. 2025 (arXiv 2501.01005).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pagewire.ipc.errors import ConfigError

from ...batch.forward_metadata import ForwardMetadata
from ...kv_cache_spec import LayerKVCache
from .base import PARAM, import_library

_HEAD_DIMS = (64, 128, 256)
_WORKSPACE_BYTES = 128 * 2**20  # what the library's documentation recommends


class _Plan(NamedTuple):
    """What layers must have alike to share a plan."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    query_dtype: torch.dtype
    kv_dtype: torch.dtype
    scale: float
    window: int | None
    soft_cap: float | None


class FlashInfer:
    """Attention by the library's prefill wrapper, which takes mixed decodes and chunks.

    Raises:
        ConfigError: flashinfer is not installed, or does not load.
    """

    def __init__(self, device: torch.device) -> None:
        self._library = import_library("flashinfer", "flashinfer", "flashinfer-python")
        self._device = device
        # All layers of a kind attend by one plan; a step's are made when its first layer needs them.
        self._wrappers: dict[_Plan, Any] = {}  # the library has no types
        self._planned: set[_Plan] = set()
        self._metadata: ForwardMetadata | None = None

    def attend(
        self,
        query: Tensor,
        kv_cache: LayerKVCache,
        metadata: ForwardMetadata,
        *,
        scale: float,
        sliding_window: int | None,
        soft_cap: float | None,
    ) -> Tensor:
        """See `AttentionBackend.attend`."""
        _check(query)
        if metadata is not self._metadata:
            self._metadata, self._planned = metadata, set()
        plan = _Plan(
            query.shape[1],
            kv_cache.key.shape[1],
            query.shape[2],
            query.dtype,
            kv_cache.key.dtype,
            scale,
            sliding_window,
            soft_cap,
        )
        if plan not in self._planned:
            self._make_plan(plan, metadata)
            self._planned.add(plan)
        # Scales of the cache are a layer's own: in the plan they would make each layer a kind for itself, with a plan a
        # step and a workspace.
        scaled = query if kv_cache.key_scale == 1.0 else query * kv_cache.key_scale
        output: Tensor = self._wrappers[plan].run(scaled, (kv_cache.key, kv_cache.value))
        return output if kv_cache.value_scale == 1.0 else output * kv_cache.value_scale

    def _make_plan(self, plan: _Plan, metadata: ForwardMetadata) -> None:
        if plan not in self._wrappers:
            workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
            self._wrappers[plan] = self._library.BatchPrefillWithPagedKVCacheWrapper(workspace, kv_layout="HND")
        block_size = metadata.block_size
        num_blocks = (metadata.seq_lens + block_size - 1) // block_size
        # The host waits here until it knows how many blocks there are, once a step and kind of layer; so does the
        # library, which copies what it plans by to the host.
        is_used = torch.arange(metadata.block_tables.shape[1], device=num_blocks.device) < num_blocks[:, None]
        self._wrappers[plan].plan(
            metadata.query_start_loc,
            F.pad(num_blocks.cumsum(0, dtype=torch.int32), (1, 0)),
            metadata.block_tables[is_used],
            metadata.seq_lens - (num_blocks - 1) * block_size,
            plan.num_heads,
            plan.num_kv_heads,
            plan.head_dim,
            block_size,
            causal=True,
            sm_scale=plan.scale,
            window_left=-1 if plan.window is None else plan.window - 1,
            logits_soft_cap=plan.soft_cap,
            q_data_type=plan.query_dtype,
            kv_data_type=plan.kv_dtype,
        )


def _check(query: Tensor) -> None:
    reason = None
    if query.dtype not in (torch.float16, torch.bfloat16):
        reason = f"takes float16 and bfloat16, not {query.dtype}: give --dtype"
    elif query.shape[2] not in _HEAD_DIMS:
        reason = f"takes heads of {_HEAD_DIMS} channels, not {query.shape[2]}: leave --attention-backend out"
    if reason is not None:
        raise ConfigError(f"--attention-backend flashinfer {reason}.", param=PARAM)
