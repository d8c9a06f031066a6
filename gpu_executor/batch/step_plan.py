"""Checking a step against the rows that it names, before anything changes: one bad row fails alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from pagewire.ipc.errors import EngineError, ErrorInfo, InvalidRequest, PagewireError
from pagewire.ipc.steps import NewRow, ScheduledRow

from ..sampling.draw import RowSampling


@dataclass(frozen=True, slots=True)
class PreparedRow:
    """A new row that passed its checks.

    Attributes:
        token_ids, block_table: int32 arrays.
    """

    row_id: int
    token_ids: np.ndarray
    num_prompt_tokens: int
    block_table: np.ndarray
    row_sampling: RowSampling
    salt: str = ""
    pooling: Literal["", "last", "mean"] = ""


@dataclass(slots=True)
class StepPlan:
    """A step whose rows are known to be sound.

    Attributes:
        new_rows: to be added, by row id.
        rows: to be computed, in batch order.
        errors: why the other rows are not.
    """

    new_rows: dict[int, PreparedRow] = field(default_factory=dict)
    rows: list[ScheduledRow] = field(default_factory=list)
    errors: dict[int, ErrorInfo] = field(default_factory=dict)

    def fail(self, errors: Mapping[int, ErrorInfo]) -> None:
        """Leave out rows for other reasons, by row id."""
        if errors:
            self.new_rows = {row_id: row for row_id, row in self.new_rows.items() if row_id not in errors}
            self.rows = [row for row in self.rows if row.row_id not in errors]
            self.errors = {**errors, **self.errors}


@dataclass(frozen=True, slots=True)
class RowLimits:
    """What bounds the ids in a row.

    Attributes:
        num_blocks, block_size: of the KV pool.
        vocab_size: rows of the embedding; a token id below it can be looked up.
        num_drawable: ids that the tokenizer knows.
    """

    num_blocks: int
    block_size: int
    vocab_size: int
    num_drawable: int


class RowState(NamedTuple):
    """How long a row is before the step."""

    num_tokens: int
    num_blocks: int


def plan_step(
    new_rows: Iterable[NewRow],
    rows: Iterable[ScheduledRow],
    find_row: Callable[[int], RowState | None],
    limits: RowLimits,
    *,
    takes_drawn_tokens: bool = False,
) -> StepPlan:
    """Check every row of a step.

    Args:
        new_rows: full data of rows that are not held yet.
        rows: the step's rows, new ones among them.
        find_row: what is held of a row once the step's removals are done; None if nothing is.
        limits: bounds of the ids.
        takes_drawn_tokens: the rows' tokens are drawn elsewhere, and those that come with the rows are appended first.
    """
    plan = StepPlan()
    for new_row in new_rows:
        try:
            if new_row.row_id in plan.new_rows or find_row(new_row.row_id) is not None:
                raise EngineError(f"row {new_row.row_id} is new, but held already")
            plan.new_rows[new_row.row_id] = _prepare(new_row, limits)
        except PagewireError as exc:
            plan.errors[new_row.row_id] = exc.to_info()
    scheduled: set[int] = set()
    for row in rows:
        if row.row_id in plan.errors:
            continue
        try:
            if row.row_id in scheduled:
                raise EngineError(f"row {row.row_id} is scheduled twice in one step")
            prepared = plan.new_rows.get(row.row_id)
            state = find_row(row.row_id) if prepared is None else _state_of(prepared)
            if state is None:
                raise EngineError(f"row {row.row_id} is scheduled, but not held")
            if takes_drawn_tokens and row.drawn_token_ids:
                _check_token_ids("drawn_token_ids", row.drawn_token_ids, limits)
                state = state._replace(num_tokens=state.num_tokens + len(row.drawn_token_ids))
            _check_token_ids("draft_token_ids", row.draft_token_ids, limits)
            _check_scheduled(row, state, limits)
        except PagewireError as exc:
            plan.errors[row.row_id] = exc.to_info()
            continue
        scheduled.add(row.row_id)
        plan.rows.append(row)
    return plan


def _state_of(row: PreparedRow) -> RowState:
    return RowState(num_tokens=len(row.token_ids), num_blocks=len(row.block_table))


def _prepare(row: NewRow, limits: RowLimits) -> PreparedRow:
    if not 0 < row.num_prompt_tokens <= len(row.token_ids):
        raise EngineError(f"row {row.row_id} has {row.num_prompt_tokens} prompt tokens of {len(row.token_ids)}")
    sampling = row.sampling
    for name, ids in (
        ("prompt", row.token_ids),
        ("stop_token_ids", sampling.end_token_ids),
        ("logit_bias", list(sampling.logit_bias)),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
        ("bad_words", [token_id for word in sampling.bad_words_token_ids for token_id in word]),
    ):
        _check_token_ids(name, ids, limits)
    if not all(sampling.bad_words_token_ids):
        raise InvalidRequest("bad_words contains an empty sequence.", param="bad_words")
    _check_blocks(row.row_id, row.block_table, limits)
    return PreparedRow(
        row_id=row.row_id,
        token_ids=np.array(row.token_ids, dtype=np.int32),
        num_prompt_tokens=row.num_prompt_tokens,
        block_table=np.array(row.block_table, dtype=np.int32),
        row_sampling=RowSampling.prepare(sampling, row.child, limits.num_drawable),
        salt=row.salt,
        pooling=row.pooling,
    )


def _check_token_ids(name: str, ids: Sequence[int], limits: RowLimits) -> None:
    # An id beyond a row of logits would write into the neighbour's row.
    if ids and not (min(ids) >= 0 and max(ids) < limits.vocab_size):
        raise InvalidRequest(
            f"{name} contains a token id outside of this model's vocabulary, 0 to {limits.vocab_size - 1}.", param=name
        )


def _check_scheduled(row: ScheduledRow, state: RowState, limits: RowLimits) -> None:
    room_end = row.num_computed_tokens + row.num_scheduled_tokens
    end = room_end - len(row.draft_token_ids)
    if row.draft_token_ids and (row.num_draws != 1 or end - row.num_computed_tokens != 1):
        raise EngineError(f"row {row.row_id} has drafts, which come behind a row's last token alone, and one draw")
    if row.num_computed_tokens < 0 or row.num_scheduled_tokens < 1 or end > state.num_tokens:
        raise EngineError(
            f"row {row.row_id} is to compute tokens [{row.num_computed_tokens}, {end}) of {state.num_tokens}"
        )
    if row.num_draws < 0 or (row.num_draws and end != state.num_tokens):
        raise EngineError(
            f"row {row.row_id} is to draw {row.num_draws} tokens after token {end} of {state.num_tokens}; "
            "a draw needs the last one"
        )
    num_blocks = state.num_blocks
    if row.new_block_ids:
        _check_blocks(row.row_id, row.new_block_ids, limits)
        num_blocks += len(row.new_block_ids)
    if num_blocks * limits.block_size < room_end:
        raise EngineError(
            f"row {row.row_id} has {num_blocks} blocks of {limits.block_size} tokens, too few for {room_end} tokens"
        )
    if row.replaced_block is not None:
        index, block_id = row.replaced_block
        _check_blocks(row.row_id, [block_id], limits)
        if not 0 <= index < num_blocks:
            raise EngineError(f"row {row.row_id} replaces block {index} of {num_blocks}")


def _check_blocks(row_id: int, block_ids: list[int], limits: RowLimits) -> None:
    if block_ids and not (min(block_ids) >= 0 and max(block_ids) < limits.num_blocks):
        raise EngineError(f"row {row_id} has a block id outside of the pool of {limits.num_blocks}")
