"""What guesses tokens: the seam between the runner and any way of guessing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pagewire.ipc.steps import ExecuteStep

from ..batch.step_plan import StepPlan


class RowTokens(NamedTuple):
    """A row that has just drawn.

    Attributes:
        row_id: as the core knows it.
        token_ids: [num_tokens] int32, prompt and output, what was drawn included; a view.
        num_prompt_tokens: how many of them are prompt.
        salt: of its request: rows of another salt must learn nothing of it.
        num_wanted: most guesses that are of use.
    """

    row_id: int
    token_ids: np.ndarray
    num_prompt_tokens: int = 0
    salt: str = ""
    num_wanted: int = 0


class Proposer(Protocol):
    """Guesses what rows draw next. Right or wrong, guesses change no answer, only how many steps it takes."""

    def propose(self, rows: Sequence[RowTokens]) -> list[list[int]]:
        """Return the guesses of each row, most likely from the first on; empty where there are none.

        Args:
            rows: each has drawn in the step that is just done, and wants guesses.
        """
        ...

    def follow(self, step: ExecuteStep, plan: StepPlan) -> None:
        """Note what a step does to rows and blocks before it is computed; called for every step.

        Args:
            step: whose removed rows were forgotten.
            plan: its rows that are sound; they are in the batch.
        """
        ...

    def forget(self, row_ids: Iterable[int]) -> None:
        """Note that rows are gone; called while their tokens are still in their places."""
        ...
