"""Guesses out of a row's own text, or out of what the server wrote lately: whichever agrees for longer.

Agents ask the same again and again, with small changes: their answers repeat earlier ones, and not their prompts.

Source: Oliaro et al. 2024, "SuffixDecoding" (arXiv 2411.04975).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from pagewire.ipc.steps import ExecuteStep

from ..batch.step_plan import StepPlan
from .prompt_lookup import continuation, find_last_run
from .proposer import RowTokens

_LONGEST = 16  # a longer run says little more
_GAP = -1  # between answers: no token, so that no run goes across
# Tokens that are remembered of each salt, and salts that are: a lookup reads all of its salt's.
_MAX_TOKENS = 1 << 16
_MAX_SALTS = 64


class SuffixLookup:
    """See `Proposer`. Answers are remembered when their rows are gone, each for rows of the same salt alone.

    Args:
        num_tokens: most guesses for a row.
        shortest: of the run of last tokens that is looked up.
    """

    def __init__(self, num_tokens: int, *, shortest: int) -> None:
        self._num_tokens = num_tokens
        self._shortest = shortest
        self._rows: dict[int, RowTokens] = {}
        self._answers: OrderedDict[str, np.ndarray] = OrderedDict()  # by salt, the one used last at the end

    def propose(self, rows: Sequence[RowTokens]) -> list[list[int]]:
        """See `Proposer.propose`."""
        self._rows.update((row.row_id, row) for row in rows)
        return [self._look_up(row) for row in rows]

    def follow(self, step: ExecuteStep, plan: StepPlan) -> None:
        """See `Proposer.follow`: only tokens count."""

    def forget(self, row_ids: Iterable[int]) -> None:
        """See `Proposer.forget`: what the rows have written is remembered."""
        for row_id in row_ids:
            row = self._rows.pop(row_id, None)
            if row is not None:
                self._remember(row.salt, row.token_ids[row.num_prompt_tokens :])

    def _look_up(self, row: RowTokens) -> list[int]:
        token_ids = row.token_ids
        own = find_last_run(token_ids, token_ids[:-1], _LONGEST, self._shortest)
        answers = self._answers.get(row.salt)
        if answers is not None:
            self._answers.move_to_end(row.salt)
            run = find_last_run(token_ids, answers, _LONGEST, self._shortest)
            if run is not None and (own is None or run.length > own.length):
                return _up_to_gap(answers[run.end : run.end + self._num_tokens])
        return [] if own is None else continuation(token_ids, own.end, self._num_tokens)

    def _remember(self, salt: str, token_ids: np.ndarray) -> None:
        kept = self._answers.pop(salt, np.empty(0, dtype=np.int32))
        # The oldest go: those at the front. A gap ends each answer.
        kept = np.concatenate([kept, token_ids, np.array([_GAP], dtype=np.int32)])[-_MAX_TOKENS:]
        self._answers[salt] = kept
        if len(self._answers) > _MAX_SALTS:
            self._answers.popitem(last=False)


def _up_to_gap(token_ids: np.ndarray) -> list[int]:
    guesses: list[int] = token_ids.tolist()
    return guesses[: guesses.index(_GAP)] if _GAP in guesses else guesses
