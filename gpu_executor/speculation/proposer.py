"""What guesses tokens: the seam between the runner and any way of guessing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np


class RowTokens(NamedTuple):
    """A row that has just drawn.

    Attributes:
        row_id: as the core knows it.
        token_ids: [num_tokens] int32, prompt and output, what was drawn included; a view.
        num_prompt_tokens: how many of them are prompt.
        salt: of its request: rows of another salt must learn nothing of it.
    """

    row_id: int
    token_ids: np.ndarray
    num_prompt_tokens: int = 0
    salt: str = ""


class Proposer(Protocol):
    """Guesses what rows draw next. Right or wrong, guesses change no answer, only how many steps it takes."""

    def propose(self, rows: Sequence[RowTokens]) -> list[list[int]]:
        """Return the guesses of each row, most likely from the first on; empty where there are none.

        Args:
            rows: each has drawn in the step that is just done.
        """
        ...

    def forget(self, row_ids: Iterable[int]) -> None:
        """Note that rows are gone; called while their tokens are still in their places."""
        ...
