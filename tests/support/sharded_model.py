"""One model on several ranks of one process: threads share its layers, stages follow each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.batch.forward_metadata import ForwardMetadata
from pagewire.gpu_executor.kernels.draws import OutputRows
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kv_cache_spec import KVCacheSpec, LayerKVCache
from pagewire.gpu_executor.models.base import Model
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.parallel.share import Share
from pagewire.gpu_executor.weights import load_weights
from tests.support.rank_threads import ThreadedRanks
from tests.support.shared_ranks import SharedMemoryRanks


class ShardedModel:
    """Offers what tests ask of a whole `Model`; what all ranks must have alike is compared bit for bit.

    Args:
        path: the checkpoint.
        tp: ranks that share each layer.
        pp: stages.
        make_ops: makes a rank's kernels.
        make_ranks: makes the ranks of a stage; by default they are `ThreadedRanks`.
        dtype: see `build_model`; `divides_experts` likewise.

    Attributes:
        stages: the ranks' models, by stage and rank.
        loaded_bytes: of weights, likewise.
    """

    def __init__(
        self,
        path: Path,
        *,
        tp: int = 1,
        pp: int = 1,
        make_ops: Callable[[], Ops] = ReferenceOps,
        make_ranks: Callable[[int], ThreadedRanks | SharedMemoryRanks] = ThreadedRanks,
        dtype: torch.dtype | None = torch.float32,
        max_model_len: int = 128,
        divides_experts: bool = False,
    ) -> None:
        config = load_model_config(path)
        self._ranks = make_ranks(tp)
        self.stages: list[list[Model]] = []
        self.loaded_bytes: list[list[int]] = []
        for stage in range(pp):
            shards: list[Model] = []
            sizes: list[int] = []
            for rank, group in enumerate(self._ranks.groups):
                ops = make_ops()
                ops.join(group)
                model = build_model(
                    config,
                    ops,
                    dtype=dtype,
                    device=torch.device("cpu"),
                    max_model_len=max_model_len,
                    share=Share(rank, tp),
                    stage=Share(stage, pp),
                    divides_experts=divides_experts,
                )
                load_weights(model, config, check_size=sizes.append)
                shards.append(model)
            self.stages.append(shards)
            self.loaded_bytes.append(sizes)

    def kv_cache_specs(self) -> list[KVCacheSpec]:
        """Return those of all ranks, by stage, rank and layer."""
        return [spec for shards in self.stages for model in shards for spec in model.kv_cache_specs()]

    def forward(self, input_ids: Tensor, metadata: ForwardMetadata, kv_caches: Sequence[LayerKVCache]) -> Tensor:
        """See `Model.forward`."""
        caches, stream = iter(kv_caches), None
        for shards in self.stages:
            mine = [list(islice(caches, len(model.kv_cache_specs()))) for model in shards]
            streams = self._ranks.run(
                lambda rank, shards=shards, mine=mine, stream=stream: shards[rank].forward(
                    input_ids, metadata, mine[rank], stream
                )
            )
            assert all(torch.equal(other, streams[0]) for other in streams)
            stream = streams[0]
        assert stream is not None
        return stream

    def compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """See `Model.compute_logits`."""
        logits = self._ranks.run(lambda rank: self.stages[-1][rank].compute_logits(hidden, out if rank == 0 else None))
        assert all(torch.equal(other, logits[0]) for other in logits)
        return logits[0]

    def choose_tokens(self, hidden: Tensor, num_drawable: int, kept_rows: Sequence[int]) -> OutputRows:
        """See `Model.choose_tokens`."""
        rows = self._ranks.run(lambda rank: self.stages[-1][rank].choose_tokens(hidden, num_drawable, kept_rows))
        for other in rows:
            assert (other.best_values, other.best_ids) == (rows[0].best_values, rows[0].best_ids)
            assert (other.logits is None) == (rows[0].logits is None)
            assert other.logits is None or torch.equal(other.logits, rows[0].logits)
        return rows[0]
