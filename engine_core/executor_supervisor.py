"""Keeps executors running: notices that they died or hang, ends what is left of them, starts others in their place.

Nothing here blocks. While a killed group ends and the next one loads its model, the loop goes on serving its clients.
"""

from __future__ import annotations

import enum
import functools
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import zmq

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.errors import ExecutorDied, PagewireError, StartError
from pagewire.ipc.restart_budget import RestartBudget
from pagewire.ipc.steps import ExecuteStep, ExecutorBusy, ExecutorFailed, ExecutorReady, FromExecutor, StepResult

from .executor_client import ExecutorGroup
from .stall_watch import StallWatch

logger = logging.getLogger(__name__)

# From its start to its first message a process needs some tenths of a second; the first of all, on a cold and busy
# disk, many seconds.
_FIRST_MESSAGE_S = 20.0
_LATER_FIRST_MESSAGE_S = 5.0
_LAST_WORDS_S = 0.2  # an executor that fails says why before it ends; its message may arrive after its death notice


class _State(enum.Enum):
    LOADING = enum.auto()
    SERVING = enum.auto()
    ENDING = enum.auto()  # killed; not every process is dead yet


@dataclass(frozen=True, slots=True)
class ExecutorDeath:
    """Why a group of executors can't go on.

    Attributes:
        text: what happened, as a clause: "executor 0 was killed by signal 9".
        error: what the executors themselves said of it, if they did.
        came_from_outside: they were killed or stopped: another group may well do better.
        final: with what to give up, None if another group follows.
    """

    text: str
    error: PagewireError | None = None
    came_from_outside: bool = False
    final: PagewireError | None = None


class ExecutorSupervisor:
    """The executors as the loop sees them: one group after the other, each with an epoch of its own.

    The loop's part, every turn: take in what `receive` yields and ask `is_lost`; if so, take in the last words as well
    and `end` the group. Then call `go_on`.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        runtime_dir: RuntimeDir,
        config: EngineConfig,
        poller: zmq.Poller,
        *,
        core_epoch: int,
        num_blocks: int | None,
        module: str,
        now: float,
    ) -> None:
        """Start the first group.

        Args:
            context: the core's ZeroMQ context.
            runtime_dir: where the sockets go.
            config: has the limits; sent to every executor.
            poller: what the loop waits in.
            core_epoch: of the core itself.
            num_blocks: the pool size that an earlier core's executors settled, None to have it measured.
            module: what to run.
            now: seconds on the loop's monotonic clock.
        """
        self._start_group = functools.partial(
            ExecutorGroup, context, runtime_dir, config, poller, core_epoch=core_epoch, module=module
        )
        # The first start of all is the user's: what goes wrong there is told at once. A later core's is a recovery.
        self._has_served = core_epoch > 1
        self._budget = RestartBudget("the executor", config.supervision.max_restarts)
        self._stall = StallWatch(config.supervision.stall_limit)
        self._num_blocks = num_blocks
        self._num_in_flight = 0
        self._death: ExecutorDeath | None = None
        self._lost_s: float | None = None
        self._state = _State.LOADING
        self._group = self._start_group(epoch=1, num_blocks=num_blocks)
        self._stall.expect(now, _FIRST_MESSAGE_S if core_epoch == 1 else _LATER_FIRST_MESSAGE_S)

    @property
    def epoch(self) -> int:
        """Of the group that runs or loads."""
        return self._group.epoch

    @property
    def takes_steps(self) -> bool:
        """Whether the group is ready and nothing speaks against it."""
        return self._state is _State.SERVING and self._death is None

    @property
    def needs_attention(self) -> bool:
        """Whether the loop has to come back without being woken, to see whether the executors hang."""
        return self._stall.is_waiting

    def send(self, step: ExecuteStep, now: float) -> None:
        """Send a step to every rank; they have to answer within the stall limit."""
        if self._num_in_flight == 0:
            self._stall.expect(now)
        self._num_in_flight += 1
        self._group.send(step)

    def receive(self, now: float) -> Iterator[FromExecutor]:
        """Yield what the loop has to know of what the executors have sent.

        Raises:
            ProtocolError: they sent what can't be read.
        """
        for message in self._group.drain():
            match message:
                case StepResult():
                    self._num_in_flight -= 1
                    if self._num_in_flight > 0:
                        self._stall.expect(now)
                    else:
                        self._stall.rest()
                    yield message
                case ExecutorBusy():
                    logger.debug("the executor is busy: %s", message.reason)
                    if self._state is _State.SERVING:
                        self._stall.announce(now, message.limit_s)
                    else:  # a start is a row of announcements, each of which may be its last
                        self._stall.expect(now, message.limit_s)
                case ExecutorFailed():
                    error = PagewireError.from_info(message.error)
                    self._death = ExecutorDeath(f"the executor failed: {error}", error)
                case ExecutorReady() if self._num_blocks not in (None, message.num_blocks):
                    self.condemn(f"the executor has {message.num_blocks} KV blocks and was given {self._num_blocks}")
                case ExecutorReady():
                    self._become_ready(message, now)
                    yield message
                case _:
                    yield message

    def note_progress(self) -> None:
        """Begin to count deaths anew: a step was done, or a request was found to be the cause of the last ones."""
        self._budget.step_finished()

    def condemn(self, text: str) -> None:
        """Note that the executors have done what rules out going on with them."""
        self._death = self._death or ExecutorDeath(text)

    def is_lost(self, now: float) -> bool:
        """Return whether the group can't go on. What it has sent must have been received before."""
        if self._state is _State.ENDING:
            return False
        if self._death is None:
            self._death = self._find_death(now)
        return self._death is not None

    def end(self, now: float) -> ExecutorDeath:
        """End the group that is lost, and decide whether another one follows."""
        assert self._death is not None
        death, self._death = self._death, None
        is_failed_start = self._state is _State.LOADING and not death.came_from_outside
        self._state = _State.ENDING
        self._num_in_flight = 0
        self._stall.start_over()
        self._group.begin_kill()
        self._lost_s = now if self._lost_s is None else self._lost_s
        if not self._has_served:
            is_told = isinstance(death.error, StartError)
            return replace(
                death, final=death.error if is_told else ExecutorDied(f"The engine can't start: {death.text}")
            )
        self._budget.count_death(is_failed_start=is_failed_start)
        reason = self._budget.exhausted_by()
        if reason is not None:
            return replace(death, final=ExecutorDied(f"The engine gives up, because {reason}: {death.text}"))
        logger.error("%s; it is replaced, and what it had in hand will be computed again", death.text)
        return death

    def go_on(self, now: float) -> None:
        """Start the next group once the last one is dead: it may need all the memory that there is."""
        if self._state is _State.ENDING and self._group.reap():
            self._group = self._start_group(epoch=self._group.epoch + 1, num_blocks=self._num_blocks)
            self._state = _State.LOADING
            self._stall.expect(now, _LATER_FIRST_MESSAGE_S)
            logger.info("executor epoch %d starts", self._group.epoch)

    def stop(self, *, grace_s: float = 0.0) -> None:
        """Order the executors to stop, see to it, reap them."""
        self._group.stop(grace_s=grace_s)

    def kill(self) -> None:
        """End the executors at once, and reap them."""
        self._group.kill()

    def _become_ready(self, message: ExecutorReady, now: float) -> None:
        self._num_blocks = message.num_blocks
        self._has_served = True
        self._state = _State.SERVING
        self._stall.rest()
        self._budget.start_succeeded()
        if self._lost_s is not None:
            logger.info("executor epoch %d takes steps, %.2f s after the loss", self.epoch, now - self._lost_s)
            self._lost_s = None

    def _find_death(self, now: float) -> ExecutorDeath | None:
        death = self._group.find_death()
        if death is not None:
            if not death.was_killed:
                self._group.wait_for_message(_LAST_WORDS_S)
            return ExecutorDeath(death.text, came_from_outside=death.was_killed)
        if self._stall.is_overdue(now):
            is_loading = self._state is _State.LOADING
            what = "gave no sign of life while it started" if is_loading else "did not answer a step"
            limit = "" if self._stall.is_announced else " (--stall-limit)"
            text = f"the executor {what} for {self._stall.allowed_s:.3g} s{limit}"
            return ExecutorDeath(text, came_from_outside=True)
        return None
