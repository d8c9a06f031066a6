"""A step between its launch and its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from pagewire.ipc.errors import EngineError, ErrorInfo
from pagewire.ipc.steps import ExecuteStep, RowResult, ScheduledRow, StepResult

from .batch.input_batch import InputBatch, ReservedPlace
from .devices.base import Marker
from .pooling import NO_VECTORS, PendingVectors
from .sampling.draw import Drawn
from .sampling.pending import PendingDraws
from .speculation.acceptance import accept_all
from .speculation.proposer import Proposer, RowTokens


class StepInFlight(ABC):
    """A step that was launched. Steps are finished in the order of their launches."""

    @abstractmethod
    def is_done(self) -> bool:
        """Say whether `finish` would return without waiting for the device."""

    @abstractmethod
    def wait(self) -> None:
        """Block until it would; other threads run meanwhile."""

    @abstractmethod
    def finish(self) -> StepResult:
        """Wait for the step and return its result."""


class FinishedStep(StepInFlight):
    """A step that was done when its launch returned."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        return

    def finish(self) -> StepResult:
        return self._result


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Points in the device's order of work.

    Attributes:
        start: before the step's first work.
        end: after its last.
        idle_since: the end of the step before, if all that kept the device from this one since was its launch; None
            if there was nothing to compute.
    """

    start: Marker
    end: Marker
    idle_since: Marker | None


@dataclass
class LaunchedStep(StepInFlight):
    """A step that a device may still be at.

    Attributes:
        step: as it came.
        batch: gets the tokens.
        times: when the device was at it.
        errors: of rows that failed their checks.
        of_prompt: prompt logprobs, by row id.
        vectors: of the prompts that it has pooled.
        drawing: the rows that draw, in order.
        reserved: the places of their tokens.
        pending: the draws.
        proposer: guesses what the rows draw next; None: nobody does.
    """

    step: ExecuteStep
    batch: InputBatch
    times: StepTimes
    errors: Mapping[int, ErrorInfo]
    of_prompt: Mapping[int, RowResult]
    drawing: Sequence[ScheduledRow]
    reserved: Sequence[ReservedPlace]
    pending: PendingDraws
    proposer: Proposer | None = None
    vectors: PendingVectors = NO_VECTORS
    _drawn: dict[int, RowResult] | None = field(default=None, init=False)

    def is_done(self) -> bool:
        return self.times.end.is_reached()

    def wait(self) -> None:
        self.times.end.wait()

    @property
    def is_settled(self) -> bool:
        """Whether the rows have their tokens."""
        return self._drawn is not None

    @property
    def checked_row_ids(self) -> set[int]:
        """The rows whose drafts it checks."""
        return {row.row_id for row in self.drawing if row.draft_token_ids}

    def settle(self) -> dict[int, RowResult]:
        """Wait for the draws alone, give the rows their tokens, and return the results by row id; once is enough.

        Those of earlier steps must have been settled before.
        """
        if self._drawn is None:
            all_drawn = accept_all(self.drawing, self.pending.collect())
            self._drawn = {
                row.row_id: self._settle_row(row, reserved, drawn)
                for row, reserved, drawn in zip(self.drawing, self.reserved, all_drawn, strict=True)
            }
        return self._drawn

    def finish(self) -> StepResult:
        drawn = self.settle()
        times = self.times
        times.end.wait()
        if self.proposer is not None:
            drawn = self._with_guesses(self.proposer, drawn)
        device_s = times.end.seconds_since(times.start)
        host_gap_s = 0.0 if times.idle_since is None else max(times.start.seconds_since(times.idle_since), 0.0)
        return StepResult(
            executor_epoch=self.step.executor_epoch,
            step_id=self.step.step_id,
            rows=merge_results(self.step, drawn, {**self.of_prompt, **self.vectors.collect()}, self.errors),
            step_s=device_s + host_gap_s,
            device_s=device_s,
            host_gap_s=host_gap_s,
        )

    def _with_guesses(self, proposer: Proposer, drawn: Mapping[int, RowResult]) -> dict[int, RowResult]:
        """Return the rows' results with what is guessed to follow; rows that were removed meanwhile need no guesses."""
        rows: list[RowTokens] = []
        for row, reserved in zip(self.drawing, self.reserved, strict=True):
            result = drawn[row.row_id]
            if row.num_wanted_drafts and result.error is None:
                history = self.batch.settled_history(reserved, len(result.token_ids))
                if history is not None:
                    salt = self.batch.salt_of(row.row_id)
                    rows.append(RowTokens(row.row_id, *history, salt, row.num_wanted_drafts))
        results = dict(drawn)
        for tokens, guesses in zip(rows, proposer.propose(rows), strict=True):
            if guesses:
                results[tokens.row_id] = msgspec.structs.replace(drawn[tokens.row_id], next_draft_ids=guesses)
        return results

    def _settle_row(self, row: ScheduledRow, reserved: ReservedPlace, drawn: Drawn) -> RowResult:
        row_id = row.row_id
        # Of several children, the row itself takes the first one's token.
        given = drawn.token_ids if row.num_draws == 1 else drawn.token_ids[:1]
        if not self.batch.settle_tokens(reserved, given):
            # It was sent before the core knew of the failure, and computed with whatever token the failed draw left.
            error = EngineError(f"row {row_id} has failed in an earlier step")
            return RowResult(row_id=row_id, error=error.to_info())
        return RowResult(row_id=row_id, token_ids=drawn.token_ids, logprobs=drawn.logprobs, error=drawn.error)


def merge_results(
    step: ExecuteStep,
    drawn: Mapping[int, RowResult],
    of_prompt: Mapping[int, RowResult],
    errors: Mapping[int, ErrorInfo],
) -> list[RowResult]:
    """Return all results of a step, in the order of its rows.

    Args:
        step: as it came.
        drawn: results of the rows that drew, by row id, in the step's order.
        of_prompt: prompt logprobs and vectors of prompts, by row id.
        errors: of the rows that failed their checks.
    """
    if not of_prompt and not errors:
        return list(drawn.values())
    results = dict(drawn)
    for row_id, of_row in of_prompt.items():
        results[row_id] = _joined(of_row, drawn.get(row_id))
    for row_id, error in errors.items():
        results[row_id] = RowResult(row_id=row_id, error=error)
    # A new row that failed may not be among the scheduled ones.
    order = dict.fromkeys([*(row.row_id for row in step.rows), *(row.row_id for row in step.new_rows)])
    return [results[row_id] for row_id in order if row_id in results]


def _joined(of_prompt: RowResult, drawn: RowResult | None) -> RowResult:
    """Return what a row got of both kinds; an error in its prompt stands alone."""
    if drawn is None or of_prompt.error is not None:
        return of_prompt
    return msgspec.structs.replace(of_prompt, token_ids=drawn.token_ids, logprobs=drawn.logprobs, error=drawn.error)
