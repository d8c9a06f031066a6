"""From a scheduler's decision to what the executor doesn't know yet."""

from __future__ import annotations

from pagewire.ipc.steps import ExecuteStep, NewRow, ScheduledRow

from ..request import NO_ROW, Child
from ..scheduled import ScheduledChild, SchedulerOutput


class StepBuilder:
    """Builds each step's message: full data of children that the executor doesn't hold, deltas of the others.

    Args:
        executor_epoch: of the first executor.
        tells_draws: whether a row's tokens are told that it has drawn since it was last scheduled: in a pipeline only
            the last stage draws.
    """

    def __init__(self, executor_epoch: int, *, tells_draws: bool = False) -> None:
        self._executor_epoch = executor_epoch
        self._tells_draws = tells_draws
        self._num_rows = NO_ROW
        self._num_steps = 0

    def start_over(self, executor_epoch: int) -> None:
        """Build for another executor from here on; no child has a row there yet."""
        self._executor_epoch = executor_epoch

    def build(self, output: SchedulerOutput, removed_row_ids: list[int]) -> ExecuteStep:
        """Return the step's message and give rows to the children that have none.

        Args:
            output: not empty.
            removed_row_ids: rows that the executor must drop before.
        """
        self._num_steps += 1
        new_rows: list[NewRow] = []
        rows: list[ScheduledRow] = []
        block_copies: list[tuple[int, int]] = []
        for item in output.scheduled:
            if item.extension.copy is not None:
                block_copies.append(item.extension.copy)
            if item.child.row_id == NO_ROW:
                new_rows.append(self._new_row(item))
                rows.append(_new_share(item))
            else:
                rows.append(_known_share(item, self._take_draws(item.child) if self._tells_draws else []))
            item.row_id = item.child.row_id
        return ExecuteStep(
            executor_epoch=self._executor_epoch,
            step_id=self._num_steps,
            removed_row_ids=removed_row_ids,
            block_copies=block_copies,
            new_rows=new_rows,
            rows=rows,
        )

    def _new_row(self, item: ScheduledChild) -> NewRow:
        child = item.child
        self._num_rows += 1
        child.row_id = self._num_rows
        child.num_told_tokens = len(child.token_ids)
        return NewRow(
            row_id=child.row_id,
            child=child.index,
            token_ids=list(child.token_ids),
            num_prompt_tokens=child.request.num_prompt_tokens,
            num_computed_tokens=item.num_computed_tokens,
            block_table=list(child.block_ids),
            sampling=child.request.sampling,
            salt=child.request.cache_salt,
            adapter_id=child.request.adapter_id,
            pooling=child.request.pooling,
        )

    def _take_draws(self, child: Child) -> list[int]:
        """Return the tokens that the child's row has drawn since it was told of any; all are committed by now."""
        drawn_token_ids = child.token_ids[child.num_told_tokens :]
        child.num_told_tokens = len(child.token_ids)
        return drawn_token_ids


def _new_share(item: ScheduledChild) -> ScheduledRow:
    return ScheduledRow(
        item.child.row_id,
        item.num_computed_tokens,
        item.num_scheduled_tokens,
        item.num_draws,
        num_wanted_drafts=item.num_wanted_drafts,
        is_masked=item.is_masked,
    )


def _known_share(item: ScheduledChild, drawn_token_ids: list[int]) -> ScheduledRow:
    extension = item.extension
    return ScheduledRow(
        item.child.row_id,
        item.num_computed_tokens,
        item.num_scheduled_tokens,
        item.num_draws,
        extension.new_block_ids,
        None if extension.copy is None else (extension.copy_index, extension.copy[1]),
        drawn_token_ids,
        item.draft_token_ids,
        item.num_wanted_drafts,
        item.is_masked,
    )
