"""When the masks of which steps can be made: as soon as all that was drawn before is committed."""

from __future__ import annotations

from collections.abc import Iterable

from pagewire.ipc.errors import PagewireError
from pagewire.ipc.steps import RowMasks

from ..request import Child, ChildStatus, Request
from ..scheduled import ScheduledChild
from ..steps.in_flight import StepInFlight


class DueMasks:
    """Remembers the steps in flight that wait for masks."""

    def __init__(self) -> None:
        self._step_ids: set[int] = set()
        self._delayed_ids: set[int] = set()

    def add(self, step: StepInFlight) -> None:
        """Note a step that is sent, if any of its rows is masked."""
        if any(item.is_masked for item in step.scheduled):
            self._step_ids.add(step.step_id)

    def clear(self) -> None:
        """Forget all steps: whoever had them is gone."""
        self._step_ids.clear()
        self._delayed_ids.clear()

    def delay(self, step: StepInFlight) -> None:
        """Put a step back that was taken, until `retry`."""
        self._delayed_ids.add(step.step_id)

    def retry(self) -> None:
        """Have the steps that were put back taken again."""
        self._step_ids |= self._delayed_ids
        self._delayed_ids.clear()

    def take(self, in_flight: Iterable[StepInFlight]) -> list[StepInFlight]:
        """Return the steps whose masks can be made now, each once.

        Args:
            in_flight: all steps, the oldest first.
        """
        if not self._step_ids:
            return []
        ready = []
        drawing: set[Child] = set()  # in steps before
        for step in in_flight:
            if step.step_id in self._step_ids and not any(
                item.is_masked and item.child in drawing for item in step.scheduled
            ):
                self._step_ids.discard(step.step_id)
                ready.append(step)
            drawing.update(item.child for item in step.scheduled if item.num_draws)
        return ready


def masks_of(step: StepInFlight) -> tuple[list[RowMasks], list[tuple[Request, PagewireError]]]:
    """Return the masks of a step's masked rows, and the requests whose grammars can't be followed any further.

    Raises:
        AutomatonFull: a grammar's next automaton has to be there first; nothing has changed.
    """
    rows: list[RowMasks] = []
    failed: list[tuple[Request, PagewireError]] = []
    for item in step.scheduled:
        if not item.is_masked:
            continue
        try:
            masks = _mask_bytes(item)
        except PagewireError as exc:
            masks = b""
            failed.append((item.child.request, exc))
        rows.append(RowMasks(item.row_id, masks))
    return rows, failed


def _mask_bytes(item: ScheduledChild) -> bytes:
    child = item.child
    # What ended draws nothing that counts, and its matcher may be past the end.
    if item.is_void or child.status is ChildStatus.FINISHED or child.matcher is None:
        return b""
    return child.matcher.masks(item.draft_token_ids)
