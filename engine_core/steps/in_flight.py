"""The steps that the executors have and did not answer yet, the oldest first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from pagewire.ipc.errors import ProtocolError

from ..scheduled import ScheduledChild
from .costs import StepShape


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step that was sent.

    Attributes:
        sent_s: when, on the loop's monotonic clock.
    """

    step_id: int
    scheduled: list[ScheduledChild]
    num_scheduled_tokens: int
    shape: StepShape
    sent_s: float


class StepsInFlight:
    """A queue of bounded length: the executors answer in the order in which they were asked.

    Args:
        max_length: steps that may be in flight at once.
    """

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._steps: deque[StepInFlight] = deque()

    def __iter__(self) -> Iterator[StepInFlight]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def has_room(self) -> bool:
        """Whether another step may be sent."""
        return len(self._steps) < self._max_length

    def add(self, step: StepInFlight) -> None:
        """Note that a step was sent."""
        self._steps.append(step)

    def oldest(self, step_id: int) -> StepInFlight:
        """Return the step that is answered next.

        Raises:
            ProtocolError: the answer is to another step than that one.
        """
        if not self._steps or self._steps[0].step_id != step_id:
            expected = self._steps[0].step_id if self._steps else "none"
            raise ProtocolError(f"the executor answered step {step_id}; the oldest one in flight is {expected}")
        return self._steps[0]

    def drop_oldest(self) -> None:
        """Note that its answer is taken in."""
        self._steps.popleft()

    def clear(self) -> None:
        """Forget all of them: nobody will answer."""
        self._steps.clear()

    def scheduled(self) -> Iterator[ScheduledChild]:
        """Yield the shares of all steps, the oldest step's first."""
        for step in self._steps:
            yield from step.scheduled
