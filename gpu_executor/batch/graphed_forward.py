"""What runs a step of decodes as one captured graph: the runner's side of it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from .step_inputs import StepInputs


class GraphedForward(Protocol):
    """Captured graphs, one a batch size.

    The runner asks `run` for every step in which each row computes one token and draws from it. Everything is launched
    on the device's one stream, in order: when a step writes its inputs into a graph's buffers, whatever an earlier
    replay reads from them has been launched before, and is done first. No call waits for a replay.

    `capture` is called only while no step is in flight and by the thread that launches steps. Another thread of the
    process may be about to return from waiting for an event, so a capture must tolerate what other threads do
    (`capture_error_mode="thread_local"`).
    """

    def run(self, inputs: StepInputs) -> tuple[Tensor, Tensor] | None:
        """Launch the forward and the output layer of a step of decodes.

        Args:
            inputs: whose `is_decode` is set.

        Returns:
            hidden, [num_rows, hidden_size], and logits, [num_rows, vocab_size] float32, of the step's rows without
            padding. They are the graph's own buffers, good for work that is launched before the next `run`. None: no
            graph fits (yet), and the step runs op by op.
        """
        ...

    def next_capture(self) -> str | None:
        """Describe what `capture` would do, for the core's log; None when nothing is left to capture."""
        ...

    def is_due(self) -> bool:
        """Say whether a capture was missed so often that steps may be held up for it."""
        ...

    def capture(self) -> None:
        """Capture one more graph; one that can't be had is noted, and not described again."""
        ...
