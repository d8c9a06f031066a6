"""The end of a step on Triton kernels: what `TritonOps` inherits for draws, penalties and logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import ClassVar

import torch
from torch import Tensor

from ..device_draws import ChunkBests, DrawTable, PenaltyTable, Reports, ReportTable
from ..device_sampling_ops import DeviceSamplingOps
from ..draw_arrays import DrawArrays, RandomRow
from ..draws import DrawRow
from .bound_logits import bound_logits
from .launches.sampling import MAX_TOP
from .sampling.best_tokens import find_best_tokens, update_best_tokens
from .sampling.bounds import find_bounds
from .sampling.draw import draw_up_to
from .sampling.nucleus import keep_to_nucleus
from .sampling.penalties import penalize
from .sampling.settle import settle
from .sampling.token_logprobs import describe_tokens


class TritonSampling(DeviceSamplingOps):
    """Draws on the device, a few launches for all rows of a step."""

    max_described_top: ClassVar[int] = MAX_TOP

    def bound_logits(self, logits: Tensor, scale: float, soft_cap: float | None, out: Tensor | None = None) -> Tensor:
        return bound_logits(logits, scale, soft_cap, out)

    def find_best_tokens(self, logits: Tensor, num_drawable: int, *, with_groups: bool) -> ChunkBests:
        return find_best_tokens(logits, num_drawable, with_groups=with_groups)

    def update_best_tokens(self, logits: Tensor, num_drawable: int, row_ids: Tensor, bests: ChunkBests) -> ChunkBests:
        return update_best_tokens(logits, num_drawable, row_ids, bests)

    def penalize(self, logits: Tensor, num_drawable: int, table: PenaltyTable) -> None:
        penalize(logits, num_drawable, table)

    def settle(self, raw: ChunkBests, bests: ChunkBests, num_drawable: int, tokens: Tensor, states: Tensor) -> Tensor:
        return settle(raw, bests, num_drawable, tokens, states)

    def draw_tokens(
        self,
        logits: Tensor,
        num_drawable: int,
        bests: ChunkBests,
        best_values: Tensor,
        states: Tensor,
        table: DrawTable,
        tokens: Tensor,
    ) -> None:
        bounds = find_bounds(logits, num_drawable, bests, best_values, states, table)
        draw_up_to(logits, num_drawable, bests, best_values, table, bounds, tokens)
        if table.num_limited:
            keep_to_nucleus(logits, num_drawable, bests, best_values, table, bounds, tokens)

    def describe_tokens(
        self,
        logits: Tensor,
        num_drawable: int,
        bests: ChunkBests,
        tokens: Tensor,
        table: ReportTable,
        reports: Reports,
    ) -> None:
        describe_tokens(logits, num_drawable, bests, tokens, table, reports)

    def draw(self, rows: Sequence[DrawRow]) -> list[list[int]]:
        """See `SamplingOps.draw`: for callers on the host, who wait for the tokens."""
        logits = torch.stack([row.logits for row in rows])
        num_rows, num_drawable = logits.shape
        # settle writes a token a row: the draws' own slots come after those.
        ends = list(accumulate((row.num_draws for row in rows), initial=num_rows))
        random_rows = [
            RandomRow(index, row.temperature, row.filters, row.key, range(begin, end))
            for index, (row, (begin, end)) in enumerate(zip(rows, pairwise(ends), strict=True))
        ]
        arrays = DrawArrays.of(random_rows, num_drawable)
        table = arrays.table([torch.from_numpy(array).to(logits.device) for array in arrays.arrays])
        bests = self.find_best_tokens(logits, num_drawable, with_groups=table.num_top_k > 0)
        tokens = torch.empty(ends[-1], dtype=torch.int64, device=logits.device)
        states = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
        best_values = self.settle(bests, bests, num_drawable, tokens, states)
        self.draw_tokens(logits, num_drawable, bests, best_values, states, table, tokens)
        drawn: list[int] = tokens.tolist()
        return [drawn[begin:end] for begin, end in pairwise(ends)]
