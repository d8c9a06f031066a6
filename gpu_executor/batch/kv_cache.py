"""The paged tensors: KV memory of all layers, addressed by block id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pagewire.ipc.errors import MachineError

from ..devices.base import Device
from ..devices.packed import upload_together
from ..kernels.ops import Ops
from ..kv_cache_spec import KVCacheShape, KVCacheSpec, LayerKVCache
from ..kv_scales import KVScales


class KVCache:
    """One pool of blocks: a block id names the same place in every layer.

    The memory is not written here. On a CPU the operating system gives a page only when it is first touched, so blocks
    that are never used cost nothing.

    Args:
        specs: what each layer stores, in layer order.
        num_blocks: blocks of the pool.
        block_size: tokens a block holds.
        dtype: of stored keys and values.
        device: where the memory lies.
        ops: says the tensors' shapes and copies blocks; only backends know the physical order.
        scales: of 8-bit keys and values, one pair a layer; None: 1 everywhere.

    Raises:
        MachineError: the device does not give the memory.
    """

    def __init__(
        self,
        specs: Sequence[KVCacheSpec],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        ops: Ops,
        scales: Sequence[KVScales] | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._device = device
        self._ops = ops
        try:
            self.layers = [
                _allocate_layer(ops.kv_cache_shape(spec, num_blocks, block_size), dtype, device, of_layer)
                for spec, of_layer in zip(specs, scales or [KVScales()] * len(specs), strict=True)
            ]
        except RuntimeError as exc:  # torch's answer when an allocation fails; torch.OutOfMemoryError is one too
            num_bytes = num_blocks * bytes_per_block(specs, block_size, dtype)
            raise MachineError(
                f"Can't allocate {num_bytes / 2**30:.2f} GiB for {num_blocks} KV blocks on {device}: lower "
                f"--gpu-memory-utilization or --max-num-seqs, or give --kv-cache-memory-bytes."
            ) from exc

    def copy_blocks(self, copies: Sequence[tuple[int, int]], device: Device | None = None) -> None:
        """Copy whole blocks in every layer; all sources are read before any target is written.

        Args:
            copies: (source, target) block ids.
            device: of the cache: takes the ids while it may be at an earlier step. None: wait for what it is at.
        """
        if not copies:
            return
        assert all(0 <= block_id < self.num_blocks for pair in copies for block_id in pair), (
            f"block copies {copies} leave the pool of {self.num_blocks} blocks"
        )
        if device is None:
            sources, targets = torch.tensor(copies, dtype=torch.int64, device=self._device).unbind(dim=1)
        else:
            sources, targets = upload_together(device, list(np.array(copies, dtype=np.int64).T))
        is_disjoint = {source for source, _ in copies}.isdisjoint(target for _, target in copies)
        for layer in self.layers:
            self._ops.copy_blocks(layer, sources, targets, is_disjoint=is_disjoint)


def bytes_per_block(specs: Sequence[KVCacheSpec], block_size: int, dtype: torch.dtype) -> int:
    """Return the bytes that one block takes over all layers."""
    return block_size * sum(spec.bytes_per_token(dtype) for spec in specs)


def _allocate_layer(shape: KVCacheShape, dtype: torch.dtype, device: torch.device, scales: KVScales) -> LayerKVCache:
    return LayerKVCache(
        key=torch.empty(shape.key, dtype=dtype, device=device),
        value=torch.empty(shape.value, dtype=dtype, device=device),
        key_scale=scales.key,
        value_scale=scales.value,
    )
