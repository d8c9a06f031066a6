"""Which KV blocks hold a draft model's keys and values: it computes a row only when guesses are wanted of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pagewire.ipc.steps import ExecuteStep, NewRow

from ..batch.step_plan import StepPlan


class WrittenBlocks:
    """Follows blocks from row to row, as their ids are handed out.

    The model that is served writes every block that rows share by the prefix cache; a draft model may not have.

    Args:
        num_blocks: of the pool.
        block_size: tokens a block holds.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._are_full = np.zeros(num_blocks, dtype=np.bool_)

    def follow(self, step: ExecuteStep, plan: StepPlan) -> None:
        """Take note of the blocks that a step hands out and copies.

        Args:
            step: before it is computed.
            plan: its rows that are sound.
        """
        for row in self._sound(step.new_rows, plan):
            num_shared = row.num_computed_tokens // self._block_size
            self._are_full[row.block_table[num_shared:]] = False
        for scheduled in plan.rows:
            if scheduled.new_block_ids:
                self._are_full[scheduled.new_block_ids] = False
        if step.block_copies:
            sources, targets = np.array(step.block_copies, dtype=np.int64).T
            self._are_full[targets] = self._are_full[sources]

    def num_tokens(self, block_table: Sequence[int]) -> int:
        """Return how many of a row's first tokens are written, by whole blocks."""
        are_full = self._are_full[block_table]
        num_full = len(block_table) if are_full.all() else int(are_full.argmin())
        return num_full * self._block_size

    def note(self, block_table: Sequence[int], num_tokens: int) -> None:
        """Note that a row's first tokens are all written."""
        self._are_full[block_table[: num_tokens // self._block_size]] = True

    @staticmethod
    def _sound(new_rows: Iterable[NewRow], plan: StepPlan) -> Iterable[NewRow]:
        return (row for row in new_rows if row.row_id in plan.new_rows)
