"""Guesses out of a row's own text: what followed the last time that it said the same.

Answers that quote, edit or translate their prompt, and code, repeat long runs of it.

Source: Saxena 2023, "Prompt Lookup Decoding"; Yang et al. 2023, "Inference with Reference" (arXiv 2304.04487).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from pagewire.ipc.steps import ExecuteStep

from ..batch.step_plan import StepPlan
from .proposer import RowTokens


class PromptLookup:
    """See `Proposer`. Nothing is kept between steps: a lookup reads the row's tokens once.

    Args:
        num_tokens: most guesses for a row.
        longest, shortest: of the run of last tokens that is looked up; the longest that occurred before counts.
    """

    def __init__(self, num_tokens: int, *, longest: int, shortest: int) -> None:
        self._num_tokens = num_tokens
        self._longest = longest
        self._shortest = shortest

    def propose(self, rows: Sequence[RowTokens]) -> list[list[int]]:
        """See `Proposer.propose`."""
        return [self._look_up(row.token_ids) for row in rows]

    def follow(self, step: ExecuteStep, plan: StepPlan) -> None:
        """See `Proposer.follow`: only tokens count."""

    def forget(self, row_ids: Iterable[int]) -> None:
        """See `Proposer.forget`."""

    def _look_up(self, token_ids: np.ndarray) -> list[int]:
        run = find_last_run(token_ids, token_ids[:-1], self._longest, self._shortest)
        return [] if run is None else continuation(token_ids, run.end, self._num_tokens)


class Run(NamedTuple):
    """Where a run of tokens was found.

    Attributes:
        end: the index behind it, where what followed begins.
        length: its tokens.
    """

    end: int
    length: int


def find_last_run(token_ids: np.ndarray, text: np.ndarray, longest: int, shortest: int) -> Run | None:
    """Return where the last tokens of a row occur in a text: the latest place of the longest run of them.

    Args:
        token_ids: [num_tokens] int32, the row.
        text: [any number] int32.
        longest: most tokens of the run.
        shortest: fewest.
    """
    num_tokens = len(token_ids)
    ends = np.flatnonzero(text == token_ids[-1]) + 1  # behind an equal last token
    found: Run | None = None
    for length in range(1, min(longest, num_tokens) + 1):
        if length > 1:
            ends = ends[ends >= length]
            ends = ends[text[ends - length] == token_ids[num_tokens - length]]
        if ends.size == 0:
            break
        if length >= shortest:
            found = Run(int(ends[-1]), length)
    return found


def continuation(token_ids: np.ndarray, start: int, num_tokens: int) -> list[int]:
    """Return what follows from `start` on; behind the last token it begins again, as the text would in a loop."""
    period = len(token_ids) - start
    head: list[int] = token_ids[start : start + num_tokens].tolist()
    while len(head) < num_tokens:
        head.append(head[len(head) - period])
    return head
