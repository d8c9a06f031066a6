"""Guesses by somebody who knows the answers, and is wrong now and then: every number of right drafts occurs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagewire.gpu_executor.batch.step_plan import StepPlan
from pagewire.gpu_executor.speculation.proposer import RowTokens
from pagewire.ipc.steps import ExecuteStep

WRONG_TOKEN = 3


class KnownAnswers:
    """See `Proposer`.

    Args:
        texts: prompts with their answers. A row is one of those that begin with its tokens, perhaps another one.
        num_tokens: guesses for a row.
        wrong_every: so many right guesses come between two wrong ones.

    Attributes:
        num_rows: that it was asked for.
    """

    def __init__(self, texts: Sequence[list[int]], *, num_tokens: int, wrong_every: int = 5) -> None:
        self._texts = texts
        self._num_tokens = num_tokens
        self._wrong_every = wrong_every
        self._num_guesses = 0
        self.num_rows = 0

    def propose(self, rows: Sequence[RowTokens]) -> list[list[int]]:
        """See `Proposer.propose`."""
        self.num_rows += len(rows)
        return [self._guess(row.token_ids.tolist()) for row in rows]

    def follow(self, step: ExecuteStep, plan: StepPlan) -> None:
        """See `Proposer.follow`."""

    def forget(self, row_ids: Iterable[int]) -> None:
        """See `Proposer.forget`."""

    def _guess(self, tokens: list[int]) -> list[int]:
        guesses: list[int] = []
        for text in self._texts:
            if text[: len(tokens)] == tokens and len(text) > len(tokens):
                guesses = text[len(tokens) : len(tokens) + self._num_tokens]
                break
        for place in range(len(guesses)):
            self._num_guesses += 1
            if self._num_guesses % (self._wrong_every + 1) == 0:
                guesses[place] = WRONG_TOKEN
        return guesses
