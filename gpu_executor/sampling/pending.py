"""Draws that a device may still be at: what the runner holds between a step's launch and its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from pagewire.ipc.outputs import TokenLogprobs

from ..models.base import Model
from .draw import Draw, Drawn
from .token_masks import FetchMasks


class PendingDraws(ABC):
    """The draws of one step.

    Attributes:
        token_ids: [num_rows] int64 on the device, the first draw of each row, always below the vocabulary (a row whose
            logits are not finite has any); the next step may be launched with them. None: `collect` does not wait.
    """

    token_ids: Tensor | None = None

    @abstractmethod
    def collect(self) -> list[Drawn]:
        """Wait for the draws and return them, one a row, in order."""


class FinishedDraws(PendingDraws):
    """Draws that were made on the host."""

    def __init__(self, drawn: list[Drawn]) -> None:
        self._drawn = drawn

    def collect(self) -> list[Drawn]:
        return self._drawn


class Drawing(Protocol):
    """What turns the rows of a step that end in a draw into tokens: `Sampler` on a CPU, `DeviceSampler` on a GPU."""

    @property
    def vocab_size(self) -> int:
        """Ids that can be drawn."""
        ...

    def begin(
        self,
        model: Model,
        hidden: Tensor,
        draws: Sequence[Draw],
        logits: Tensor | None = None,
        fetch_masks: FetchMasks | None = None,
    ) -> PendingDraws:
        """Launch the output layer and the draws of a step.

        Args:
            model: has the output layer.
            hidden: [num_rows, hidden_size], what `Model.forward` gave for the rows that draw.
            draws: one a row.
            logits: [num_rows, vocab_size] float32, if a captured graph has computed them already. They are its own
                buffer, good for what is launched here; the graph's next replay overwrites them.
            fetch_masks: called once, when the logits are computed or launched; None if no draw is masked. It may wait
                for the core, and meanwhile finish and collect earlier steps.

        The next step's draws may begin before these are collected; steps are collected in the order they began.
        """
        ...

    def prompt_logprobs(self, logits: Tensor, next_token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
        """Wait for the logprob of each prompt token under the row before it, and return them.

        Args:
            logits: [num_rows, at least vocab_size], any float dtype.
            next_token_ids: one a row.
            num_top: alternatives to report per token; -1 for the whole vocabulary.

        Raises:
            EngineError: a row is NaN or infinite.
        """
        ...
