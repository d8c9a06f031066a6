"""A tiny model with adapters, run without processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.adapters.reading import AdapterReader
from pagewire.gpu_executor.adapters.store import AdapterStore
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kv_cache_spec import LayerKVCache
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.weights import load_weights
from pagewire.ipc.adapters import Adapter
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, NewRow, ScheduledRow
from tests.support.paged import Chunk, paged_step

BLOCK_SIZE = 16
BLOCKS_PER_ROW = 8


class AdaptedModel:
    """Rows of tokens, each with an adapter or none; row i owns blocks of its own.

    Args:
        path: of the checkpoint.
        ops: the kernels.
        adapters: directories; the first one's load id is 1.
        dtype: of dense weights; None: as they are stored.
        max_rank: of adapters.
    """

    def __init__(
        self,
        path: Path,
        ops: Ops,
        adapters: Sequence[Path] = (),
        *,
        dtype: torch.dtype | None = torch.float32,
        max_rank: int = 64,
    ) -> None:
        config = load_model_config(path)
        device = torch.device("cpu")
        self.ops = ops
        self.model = build_model(config, ops, dtype=dtype, device=device, max_model_len=128)
        load_weights(self.model, config)
        self.store = AdapterStore(AdapterReader(self.model, ops, dtype or torch.float32, device, max_rank))
        for index, directory in enumerate(adapters):
            self.store.load(Adapter(name=str(index), load_id=index + 1, path=str(directory)))

    def new_caches(self, num_rows: int) -> list[LayerKVCache]:
        """Return empty paged memory, in the order that the kernels keep it in."""
        caches = []
        for spec in self.model.kv_cache_specs():
            shape = self.ops.kv_cache_shape(spec, num_rows * BLOCKS_PER_ROW, BLOCK_SIZE)
            caches.append(LayerKVCache(torch.full(shape.key, torch.nan), torch.full(shape.value, torch.nan)))
        return caches

    def hold(self, adapter_ids: Sequence[int]) -> None:
        """Give rows 0, 1, ... their adapters, 0 for none."""
        rows = [
            NewRow(
                row_id=row,
                child=0,
                token_ids=[0],
                num_prompt_tokens=1,
                num_computed_tokens=0,
                block_table=[],
                sampling=Sampling(temperature=0.0),
                adapter_id=adapter_id,
            )
            for row, adapter_id in enumerate(adapter_ids)
        ]
        step = ExecuteStep(executor_epoch=0, step_id=0, removed_row_ids=list(range(64)), new_rows=rows)
        assert self.store.follow(step) == {}

    def run(self, caches: Sequence[LayerKVCache], parts: Sequence[tuple[int, int, Tensor]]) -> list[Tensor]:
        """Compute one step; return the logits of each part's tokens.

        Args:
            caches: of `new_caches`.
            parts: (row, position of its first token, token ids).
        """
        chunks = [
            Chunk(range(row * BLOCKS_PER_ROW, (row + 1) * BLOCKS_PER_ROW), start, len(ids)) for row, start, ids in parts
        ]
        rows = [ScheduledRow(row, start, len(ids)) for row, start, ids in parts]
        metadata = replace(paged_step(chunks), adapters=self.store.tokens_of(rows))
        hidden = self.model.forward(torch.cat([ids for _, _, ids in parts]), metadata, caches)
        return list(torch.split(self.model.compute_logits(hidden), [len(ids) for _, _, ids in parts]))
