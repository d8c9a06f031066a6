"""Guesses of a smaller model with the same vocabulary, drawn as the served one draws: equal logits, equal tokens.

It runs beside the served model: its layers are further layers of the same KV blocks, and it keeps its keys and values
behind a row's tokens, in slots that the row has and does not need yet.

Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pagewire.ipc.steps import ExecuteStep, ScheduledRow

from ..batch.input_batch import InputBatch
from ..batch.kv_cache import KVCache
from ..batch.step_plan import StepPlan
from ..models.base import Model
from ..sampling.draw import Draw
from ..sampling.pending import Drawing
from .proposer import RowTokens
from .written_blocks import WrittenBlocks


@dataclass(slots=True)
class _Guess:
    """What is guessed for a row, and what is written of it for the draft model.

    Attributes:
        num_tokens: of the row, as it was guessed for.
        num_written: its first tokens whose keys and values are there before.
        num_wanted: guesses that are made.
        token_ids: those that were made; keys and values of all but the last are there.
        has_failed: no more can be made.
    """

    row_id: int
    num_tokens: int
    num_written: int
    num_wanted: int
    token_ids: list[int] = field(default_factory=list)
    has_failed: bool = False

    @property
    def is_going_on(self) -> bool:
        return not self.has_failed and len(self.token_ids) < self.num_wanted


class DraftModel:
    """See `Proposer`. On each rank that has the model, with the same draws, it guesses the same.

    Args:
        model: loaded.
        kv_cache: of its layers, of as many blocks as the served model's.
        batch: the rows.
        sampler: draws the served model's tokens as well.
        max_num_batched_tokens: most tokens of one forward.
    """

    def __init__(
        self, model: Model, kv_cache: KVCache, batch: InputBatch, sampler: Drawing, *, max_num_batched_tokens: int
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._batch = batch
        self._sampler = sampler
        self._max_num_batched_tokens = max_num_batched_tokens
        self._written = WrittenBlocks(kv_cache.num_blocks, kv_cache.block_size)
        self._last: dict[int, _Guess] = {}  # by row id

    def follow(self, step: ExecuteStep, plan: StepPlan) -> None:
        """See `Proposer.follow`."""
        self._written.follow(step, plan)
        self._kv_cache.copy_blocks(step.block_copies, self._batch.drawing_device)

    def forget(self, row_ids: Iterable[int]) -> None:
        """See `Proposer.forget`."""
        for row_id in row_ids:
            self._last.pop(row_id, None)

    def propose(self, rows: Sequence[RowTokens]) -> list[list[int]]:
        """See `Proposer.propose`."""
        guesses = {row.row_id: guess for row in rows if (guess := self._begin(row)) is not None}
        for shares in _chunks(guesses.values(), self._max_num_batched_tokens):
            self._run(shares, guesses)
        while shares := [
            ScheduledRow(guess.row_id, guess.num_tokens + len(guess.token_ids) - 1, 1)
            for guess in guesses.values()
            if guess.is_going_on
        ]:
            self._run(shares, guesses)
        for guess in guesses.values():
            self._written.note(self._batch.block_table_of(guess.row_id), guess.num_tokens)
        self._last.update(guesses)
        return [guesses[row.row_id].token_ids if row.row_id in guesses else [] for row in rows]

    def _begin(self, row: RowTokens) -> _Guess | None:
        """Return where a row stands; None if there is no room for a guess.

        All of its tokens and all guesses but the last need a slot.
        """
        num_tokens = len(row.token_ids)
        block_table = self._batch.block_table_of(row.row_id)
        num_slots = len(block_table) * self._kv_cache.block_size
        num_wanted = min(row.num_wanted, num_slots - num_tokens + 1)
        if num_wanted < 1:
            return None
        last = self._last.get(row.row_id)
        num_written = self._written.num_tokens(block_table) if last is None else _num_kept(last, row.token_ids)
        # The last token is computed in any case, for its logits.
        return _Guess(row.row_id, num_tokens, min(num_written, num_tokens - 1), num_wanted)

    def _run(self, rows: Sequence[ScheduledRow], guesses: dict[int, _Guess]) -> None:
        """Compute tokens of some rows, and draw the next guess of those whose last one is among them."""
        inputs = self._batch.build_inputs(rows)
        hidden = self._model.forward(inputs.input_ids, inputs.metadata, self._kv_cache.layers)
        drawing = [guesses[rows[index].row_id] for index in inputs.draw_rows]
        if not drawing:
            return
        if len(drawing) != hidden.shape[0]:
            hidden = hidden[inputs.metadata.logits_indices[: len(drawing)]]
        draws = [self._draw_of(guess) for guess in drawing]
        for guess, drawn in zip(drawing, self._sampler.begin(self._model, hidden, draws).collect(), strict=True):
            if drawn.error is not None:
                guess.has_failed = True
                continue
            guess.token_ids += drawn.token_ids
            self._batch.place_drafts(guess.row_id, guess.token_ids)

    def _draw_of(self, guess: _Guess) -> Draw:
        draw = self._batch.draw_behind(guess.row_id, len(guess.token_ids))
        return draw._replace(row_sampling=draw.row_sampling.without_logprobs())


def _num_kept(last: _Guess, token_ids: np.ndarray) -> int:
    """Return how many of a row's tokens are written, the guesses that became tokens of it included."""
    num_kept = last.num_tokens
    for guessed, token_id in zip(last.token_ids[:-1], token_ids[last.num_tokens :], strict=False):
        if guessed != token_id:
            break
        num_kept += 1
    return num_kept


def _chunks(guesses: Iterable[_Guess], max_num_tokens: int) -> Iterator[list[ScheduledRow]]:
    """Yield what the rows lack up to their last tokens, as forwards of so many tokens at most."""
    shares: list[ScheduledRow] = []
    room = max_num_tokens
    for guess in guesses:
        start = guess.num_written
        while start < guess.num_tokens:
            num_scheduled = min(room, guess.num_tokens - start)
            is_last = start + num_scheduled == guess.num_tokens
            shares.append(ScheduledRow(guess.row_id, start, num_scheduled, int(is_last)))
            start += num_scheduled
            room -= num_scheduled
            if room == 0:
                yield shares
                shares, room = [], max_num_tokens
    if shares:
        yield shares
