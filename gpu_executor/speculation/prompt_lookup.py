"""Guesses out of a row's own text: what followed the last time that it said the same.

Answers that quote, edit or translate their prompt, and code, repeat long runs of it.

Source: Saxena 2023, "Prompt Lookup Decoding"; Yang et al. 2023, "Inference with Reference" (arXiv 2304.04487).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

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

    def forget(self, row_ids: Iterable[int]) -> None:
        """See `Proposer.forget`."""

    def _look_up(self, token_ids: np.ndarray) -> list[int]:
        end = find_last_run(token_ids, self._longest, self._shortest)
        return [] if end is None else continuation(token_ids, end, self._num_tokens)


def find_last_run(token_ids: np.ndarray, longest: int, shortest: int) -> int | None:
    """Return where the last tokens occurred before, the latest place of the longest run of them.

    Args:
        token_ids: [num_tokens] int32.
        longest: most tokens of the run.
        shortest: fewest.

    Returns:
        The index behind that earlier run, where what followed it begins; None if there is none.
    """
    num_tokens = len(token_ids)
    ends = np.flatnonzero(token_ids[:-1] == token_ids[-1]) + 1  # behind an equal last token
    found: int | None = None
    for length in range(1, min(longest, num_tokens - 1) + 1):
        if length > 1:
            ends = ends[ends >= length]
            ends = ends[token_ids[ends - length] == token_ids[num_tokens - length]]
        if ends.size == 0:
            break
        if length >= shortest:
            found = int(ends[-1])
    return found


def continuation(token_ids: np.ndarray, start: int, num_tokens: int) -> list[int]:
    """Return what follows from `start` on; behind the last token it begins again, as the text would in a loop."""
    period = len(token_ids) - start
    head: list[int] = token_ids[start : start + num_tokens].tolist()
    while len(head) < num_tokens:
        head.append(head[len(head) - period])
    return head
