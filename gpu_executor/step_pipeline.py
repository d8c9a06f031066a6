"""Keeps a device busy: the next step is launched as soon as it is asked for, while the device is at the last one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import zmq

from pagewire.ipc.requests import CallUtility
from pagewire.ipc.steps import ExecuteStep, FromExecutor, LoadAdapter, LoadModel, Shutdown, UnloadAdapter

from .completion import CompletionNotice
from .core_inbox import CoreInbox, Order, StepMasks

if TYPE_CHECKING:
    from .step_in_flight import StepInFlight

# So long nothing is heard of the core before work is begun that it would have to wait for. Between two steps it needs
# a fraction of that.
QUIET_MS = 20


class PipelinedWorker(Protocol):
    """What a pipeline asks of `Worker`."""

    @property
    def max_steps_in_flight(self) -> int:
        """Steps that the core sends before it has the result of the first."""
        ...

    @property
    def is_output_rank(self) -> bool:
        """Whether the core is told the results."""
        ...

    def launch(self, step: ExecuteStep) -> StepInFlight | None:
        """Launch a step; None if it is of another epoch."""
        ...

    def handle(
        self, message: LoadModel | LoadAdapter | UnloadAdapter | ExecuteStep | CallUtility
    ) -> FromExecutor | None:
        """Answer a message."""
        ...

    @property
    def background_fd(self) -> int | None:
        """Readable when there are background answers; None: never."""
        ...

    def take_background_answers(self) -> Sequence[FromExecutor]:
        """Return the answers to what was done beside the steps, and is done by now."""
        ...

    def must_pause(self) -> bool:
        """Say whether steps are to be held up for a call of `idle`."""
        ...

    def idle(self) -> bool:
        """Do a piece of work that no step may be in flight for; return whether there was any."""
        ...


class StepPipeline:
    """Takes the core's messages and answers them, in order, with steps in flight.

    Every wait is for whatever comes first, a message or the end of the oldest step, and a message goes first: the
    device may be out of work. Only with as many steps in flight as the core ever sends there is nothing to come but
    that end, and it is waited for at once, without a second thread between.

    Args:
        inbox: of the core's messages.
        worker: loaded.
        notice: tells a poll of a step's end.
    """

    def __init__(
        self,
        inbox: CoreInbox,
        worker: PipelinedWorker,
        notice: CompletionNotice | None = None,
    ) -> None:
        self._inbox = inbox
        self._worker = worker
        self._notice = notice or CompletionNotice()
        self._in_flight: deque[StepInFlight] = deque()
        self._is_watched = False  # whether the notice will tell of the oldest step
        self._poller = zmq.Poller()
        self._poller.register(inbox.socket, zmq.POLLIN)
        self._poller.register(self._notice.fd, zmq.POLLIN)
        if worker.background_fd is not None:
            self._poller.register(worker.background_fd, zmq.POLLIN)

    def run(self) -> None:
        """Serve until the core says `Shutdown`; steps in flight are dropped then."""
        while not isinstance(message := self._next_message(), Shutdown):
            if isinstance(message, ExecuteStep):
                self._launch(message)
                continue
            self._finish_all()  # what is asked for is the state after the steps sent before
            reply = self._worker.handle(message)
            if reply is not None:
                self._inbox.send(reply)

    def wait_for_masks(self, step_id: int) -> StepMasks:
        """Return the masks of the step that is being launched; the steps before it are finished and told if need be.

        What they drew is what the masks hang on: the core can't make any before it knows.

        Raises:
            Stopped: there will be none.
        """
        masks = self._inbox.try_masks(step_id)
        if masks is None:
            self._finish_all()
            masks = self._inbox.wait_for_masks(step_id)
        return masks

    def _launch(self, step: ExecuteStep) -> None:
        while len(self._in_flight) >= self._worker.max_steps_in_flight:
            self._finish_oldest()
        if self._worker.must_pause():
            self._finish_all()
            self._worker.idle()
        try:
            launched = self._worker.launch(step)
        except Exception:
            # The steps before it have no part in that, and whoever is in them shall not be suspected of it.
            self._finish_all()
            raise
        if launched is not None:
            self._in_flight.append(launched)

    def _next_message(self) -> Order:
        """Return the next message; finish steps and do idle work until it is there."""
        quiet_ms = QUIET_MS
        may_idle = True
        while True:
            for answer in self._worker.take_background_answers():
                self._inbox.send(answer)
            message = self._inbox.try_recv()
            if message is not None:
                return message
            if self._in_flight:
                self._advance()
            elif not self._inbox.wait(quiet_ms if may_idle else None, fd=self._worker.background_fd):
                may_idle = self._worker.idle()
                quiet_ms = 0  # while it is at it

    def _advance(self) -> None:
        """Finish the oldest step, or wait for its end or a message."""
        oldest = self._in_flight[0]
        if len(self._in_flight) >= self._worker.max_steps_in_flight or oldest.is_done():
            self._finish_oldest()
            return
        if not self._is_watched:
            self._notice.watch(oldest)
            self._is_watched = True
        self._poller.poll()
        self._notice.clear()

    def _finish_oldest(self) -> None:
        # Finished before it is taken off: if that fails, the step counts as in flight still.
        result = self._in_flight[0].finish()
        if self._worker.is_output_rank:
            self._inbox.send(result)
        self._in_flight.popleft()
        self._is_watched = False

    def _finish_all(self) -> None:
        while self._in_flight:
            self._finish_oldest()
