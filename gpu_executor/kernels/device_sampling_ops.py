"""The ops of a backend that draws on the device: each launches its work and returns, none waits.

Rows of logits, [num_rows, at least num_drawable] float32, contiguous, are drawn from in this
order: `find_best_tokens`; for rows with edits `penalize` and `update_best_tokens`; `settle`; for rows that are left to
chance `draw_tokens`; `describe_tokens`. What a row gets depends on the row alone.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from .device_draws import ChunkBests, DrawTable, PenaltyTable, Reports, ReportTable
from .sampling_ops import SamplingOps


class DeviceSamplingOps(SamplingOps):
    """What the device's sampler asks of a backend, besides what any sampler asks.

    Attributes:
        max_described_top: best tokens of a row that `describe_tokens` gives at most.
    """

    max_described_top: ClassVar[int]

    @abstractmethod
    def find_best_tokens(self, logits: Tensor, num_drawable: int, *, with_groups: bool) -> ChunkBests:
        """Find the best token of each chunk of each row.

        Args:
            logits: the rows.
            num_drawable: ids that count.
            with_groups: whether groups are wanted, which top_k and best tokens need.
        """

    @abstractmethod
    def update_best_tokens(self, logits: Tensor, num_drawable: int, row_ids: Tensor, bests: ChunkBests) -> ChunkBests:
        """Find the best tokens of rows that were edited once more.

        Args:
            logits: the rows.
            num_drawable: ids that count.
            row_ids: [num_edited] int32, the edited rows, no two alike.
            bests: of all rows, before; its `group_max` is updated in place.

        Returns:
            Those of all rows, now.
        """

    @abstractmethod
    def penalize(self, logits: Tensor, num_drawable: int, table: PenaltyTable) -> None:
        """Make tokens that occurred less likely: see `PenaltyStrengths`.

        Args:
            logits: the rows, edited in place.
            num_drawable: ids that count.
            table: which rows, how much, and their tokens.
        """

    @abstractmethod
    def settle(self, raw: ChunkBests, bests: ChunkBests, num_drawable: int, tokens: Tensor, states: Tensor) -> Tensor:
        """Find each row's best token, and whether it has one.

        Args:
            raw: of the logits as the model gave them.
            bests: of the logits as they are now; the same if none was edited.
            num_drawable: ids that count.
            tokens: [at least num_rows] int64; the first num_rows are written, each with a drawable id.
            states: [num_rows] int64; written: `OK`, `NOT_FINITE` or `NOTHING_TO_DRAW`.

        Returns:
            [num_rows] float32, each row's largest logit.
        """

    @abstractmethod
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
        """Draw as `SamplingOps.draw` says.

        Args:
            logits: the rows.
            num_drawable: ids that count.
            bests: of the logits, with groups if a row has top_k.
            best_values: [num_rows] float32.
            states: [num_rows] int64; a draw from a row that is not `OK` may give any drawable id, but gives one.
            table: which rows, and how.
            tokens: [num_slots] int64, written at the slots of all draws.
        """

    @abstractmethod
    def describe_tokens(
        self,
        logits: Tensor,
        num_drawable: int,
        bests: ChunkBests,
        tokens: Tensor,
        table: ReportTable,
        reports: Reports,
    ) -> None:
        """Write the logprobs, ranks and best tokens that are asked for, as `SamplingOps.logprobs` says.

        Args:
            logits: the rows, raw.
            num_drawable: ids that count.
            bests: of these logits, with groups if a report has best tokens.
            tokens: [num_slots] int64, each a drawable one, those of failed rows too: `settle` and `draw_tokens` see to
                it.
            table: what is asked for.
            reports: written; of a row that is not `OK` with anything.
        """
