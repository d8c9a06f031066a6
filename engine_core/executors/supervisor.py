"""Keeps executors running: notices that they died or hang, ends what is left of them, starts others in their place.

Nothing here blocks. While a killed group ends and the next one loads its model, the loop goes on serving its clients.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec
import zmq

from pagewire.ipc.adapters import Adapter
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import ExecutorDied, MachineError, PagewireError, ProtocolError, RankLost, StartError
from pagewire.ipc.restart_budget import RestartBudget
from pagewire.ipc.steps import (
    ExecuteStep,
    ExecutorBusy,
    ExecutorFailed,
    ExecutorReady,
    FromExecutor,
    LoadAdapter,
    SamplingMasks,
    StepResult,
    UnloadAdapter,
)

from ..adapters.ranks import failed_adapters
from .client import STOP_TIMEOUT_S, ExecutorGroup
from .death import ExecutorDeath, find_cause, name_of
from .placer import ExecutorPlacer
from .stall_watch import StallWatch
from .state import ExecutorState

logger = logging.getLogger(__name__)

# From its start to its first message a process needs some tenths of a second; the first of all, on a cold and busy
# disk, many seconds.
_FIRST_MESSAGE_S = 20.0
_LATER_FIRST_MESSAGE_S = 5.0
_LAST_WORDS_S = 0.2  # an executor that fails says why before it ends; its message may arrive after its death notice


class ExecutorSupervisor:
    """The executors as the loop sees them: one group after the other, each with an epoch of its own.

    The loop's part, every turn: take in what `receive` yields and ask `is_lost`; if so, take in the last words as well
    and `end` the group. Then call `go_on`.
    """

    def __init__(
        self,
        placer: ExecutorPlacer,
        config: EngineConfig,
        poller: zmq.Poller,
        *,
        core_epoch: int,
        num_blocks: int | None,
        now: float,
        adapters: Callable[[], Sequence[Adapter]] = tuple,
    ) -> None:
        """Start the first group, or wait for the hosts that it runs on.

        Args:
            placer: starts the processes.
            config: has the limits; sent to every executor.
            poller: what the loop waits in.
            core_epoch: of the core itself.
            num_blocks: the pool size that an earlier core's executors settled, None to have it measured.
            now: seconds on the loop's monotonic clock.
            adapters: that a group is given when it starts.
        """
        self._adapters = adapters
        self._placer = placer
        self._start_group = functools.partial(ExecutorGroup, placer, config, poller)
        self._mesh = config.parallel.mesh
        self._engine_index = config.parallel.data_parallel_rank
        # The first start of all is the user's: what goes wrong there is told at once. A later core's is a recovery.
        self._has_served = core_epoch > 1
        self._budget = RestartBudget("the executor", config.supervision.max_restarts)
        self._stall_limit_s = config.supervision.stall_limit
        self._stall = StallWatch(self._stall_limit_s)
        self._num_blocks = num_blocks
        self._lost_s: float | None = None
        self._is_resting = False
        self._kill_at: float | None = None  # when a group that was told to stop is killed
        # Of the group that runs or loads:
        self._group: ExecutorGroup | None = None
        self._epoch = 0
        self._state = ExecutorState.PLACING
        self._num_in_flight = 0
        self._fault: str | None = None  # what the core itself has found wrong with it
        self._failures: dict[int, PagewireError] = {}  # by rank
        self._ready: dict[int, ExecutorReady] = {}  # by rank
        self._loading: dict[int, StallWatch] = {}  # of the ranks that are not ready
        self._first_message_s = _FIRST_MESSAGE_S if core_epoch == 1 else _LATER_FIRST_MESSAGE_S
        self.go_on(now)

    @property
    def epoch(self) -> int:
        """Of the group that runs or loads, or of the last one; 0 before the first."""
        return self._epoch

    @property
    def takes_steps(self) -> bool:
        """Whether the group is ready and nothing speaks against it."""
        return self._state is ExecutorState.SERVING and self._fault is None and not self._failures

    @property
    def needs_attention(self) -> bool:
        """Whether the loop has to come back without being woken, to see whether the executors hang."""
        is_waiting = self._stall.is_waiting or self._kill_at is not None or bool(self._loading)
        return is_waiting or self._state is ExecutorState.PLACING

    @property
    def is_resting(self) -> bool:
        """Whether no executors are to run."""
        return self._is_resting

    @property
    def is_at_rest(self) -> bool:
        """Whether none do, and all their memory is free."""
        return self._state is ExecutorState.AT_REST

    def rest(self, now: float) -> None:
        """End the group in order, and start none until `wake`. No step may be in flight."""
        self._is_resting = True
        self._lost_s = None
        if self._state is ExecutorState.PLACING:
            self._state = ExecutorState.AT_REST
        elif self._state in (ExecutorState.LOADING, ExecutorState.SERVING):
            assert self._group is not None
            logger.info("the executors end, as the engine sleeps")
            self._state = ExecutorState.ENDING
            self._loading.clear()
            self._num_in_flight = 0
            self._stall.start_over()
            self._group.begin_stop()
            self._kill_at = now + STOP_TIMEOUT_S

    def wake(self, now: float) -> None:
        """Start a group, as soon as the last one is dead."""
        self._is_resting = False
        if self._state is ExecutorState.AT_REST:
            self._state = ExecutorState.PLACING
            self.go_on(now)

    def send(self, step: ExecuteStep, now: float) -> None:
        """Send a step to every rank; they have to answer within the stall limit."""
        if self._num_in_flight == 0:
            self._stall.expect(now)
        self._num_in_flight += 1
        assert self._group is not None, "takes_steps"
        self._group.send(step)

    def tell(self, message: LoadAdapter | UnloadAdapter) -> None:
        """Send to every rank what is done behind the steps that it has."""
        if self._group is not None:
            self._group.send(message)

    def send_masks(self, masks: SamplingMasks) -> None:
        """Send every rank the masks of a step that was sent."""
        if self._group is not None:
            self._group.send(masks)

    def receive(self, now: float) -> Iterator[FromExecutor]:
        """Yield what the loop has to know of what the executors have sent.

        Raises:
            ProtocolError: they sent what can't be read, or what that rank must not send.
        """
        if self._group is None:
            return
        for rank, message in self._group.drain():
            match message:
                case StepResult():
                    self._check_right_to_answer(rank)
                    self._num_in_flight -= 1
                    if self._num_in_flight > 0:
                        self._stall.expect(now)
                    else:
                        self._stall.rest()
                    yield message
                case ExecutorBusy():
                    logger.debug("%s is busy: %s", self._name(rank), message.reason)
                    if rank in self._loading:  # a start is a row of announcements, each of which may be its last
                        self._loading[rank].expect(now, message.limit_s)
                    else:
                        self._stall.announce(now, message.limit_s, rank)
                case ExecutorFailed():
                    self._failures.setdefault(rank, PagewireError.from_info(message.error))
                case ExecutorReady():
                    self._check_num_blocks(rank, message.num_blocks)
                    self._ready[rank] = message
                    self._loading.pop(rank, None)
                    if len(self._ready) == self._mesh.world_size:
                        yield self._become_ready(self._ready[self._mesh.output_rank], now)
                case _:
                    yield message

    def note_progress(self) -> None:
        """Begin to count deaths anew: a step was done, or a request was found to be the cause of the last ones."""
        self._budget.step_finished()

    def condemn(self, text: str) -> None:
        """Note that the executors have done what rules out going on with them."""
        self._fault = self._fault or text

    def is_lost(self, now: float) -> bool:
        """Return whether the group can't go on. What it has sent must have been received before.

        Where the cause is not certain yet, this waits for a moment: to be received, too, before the group is ended.
        """
        if self._state not in (ExecutorState.LOADING, ExecutorState.SERVING):
            return False
        death = self._find_death(now)
        if death is not None and not death.is_certain and self._group is not None:
            # What ended a rank that others have lost, its death notice tells, which may come from another host.
            self._group.wait_for_news(_LAST_WORDS_S, of_deaths=isinstance(death.error, RankLost))
        return death is not None

    def end(self, now: float) -> ExecutorDeath:
        """End the group that is lost, and decide whether another one follows."""
        death = self._find_death(now)
        assert death is not None
        assert self._group is not None, "only a group can be lost"
        is_failed_start = self._state is ExecutorState.LOADING and not death.came_from_outside
        self._state = ExecutorState.ENDING
        self._loading.clear()
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

    def go_on(self, now: float) -> PagewireError | None:
        """Start the next group once the last one is dead, as it may need all the memory, and its hosts are there.

        Returns why there will be no hosts for it; None while there may.
        """
        group = self._group
        if group is not None and self._kill_at is not None and (now >= self._kill_at or group.is_dead):
            self._kill_at = None
            group.begin_kill()
        if self._state is ExecutorState.ENDING and self._kill_at is None and group is not None and group.reap():
            self._state = ExecutorState.AT_REST if self._is_resting else ExecutorState.PLACING
        try:
            if self._state is ExecutorState.PLACING and self._placer.await_hosts(now):
                self._load(now)
        except MachineError as exc:
            return exc
        return None

    def stop(self, *, grace_s: float = 0.0) -> None:
        """Order the executors to stop, see to it, reap them."""
        if self._group is not None:
            self._group.stop(grace_s=grace_s)

    def kill(self) -> None:
        """End the executors at once, and reap them."""
        if self._group is not None:
            self._group.kill()

    def _load(self, now: float) -> None:
        """Start a group, of which every rank has to say something in time until it is ready."""
        self._epoch += 1
        self._group = self._start_group(epoch=self._epoch, num_blocks=self._num_blocks, adapters=self._adapters())
        self._state = ExecutorState.LOADING
        self._num_in_flight = 0
        self._fault = None
        self._failures = {}
        self._ready = {}
        self._loading = {rank: StallWatch(self._stall_limit_s) for rank in range(self._mesh.world_size)}
        for watch in self._loading.values():
            watch.expect(now, self._first_message_s)
        self._first_message_s = _LATER_FIRST_MESSAGE_S
        if self._epoch > 1:
            logger.info("executor epoch %d starts", self._epoch)

    def _become_ready(self, message: ExecutorReady, now: float) -> ExecutorReady:
        self._num_blocks = message.num_blocks
        self._has_served = True
        self._state = ExecutorState.SERVING
        self._budget.start_succeeded()
        if self._lost_s is not None:
            logger.info("executor epoch %d takes steps, %.2f s after the loss", self.epoch, now - self._lost_s)
            self._lost_s = None
        return msgspec.structs.replace(message, failed_adapters=failed_adapters(self._ready.values()))

    def _check_right_to_answer(self, rank: int) -> None:
        if rank != self._mesh.output_rank:
            raise ProtocolError(
                f"{self._name(rank)} answered a step; that is {self._name(self._mesh.output_rank)}'s part"
            )
        if not self._num_in_flight:
            raise ProtocolError(f"{self._name(rank)} answered a step that it was not sent")

    def _check_num_blocks(self, rank: int, num_blocks: int) -> None:
        """Compare with the pool of those before it, or of the first rank that was ready."""
        if self._num_blocks is not None:
            if num_blocks != self._num_blocks:
                self.condemn(f"{self._name(rank)} has {num_blocks} KV blocks and was given {self._num_blocks}")
            return
        for other, ready in self._ready.items():
            if num_blocks != ready.num_blocks:
                has = f"{self._name(rank)} has {num_blocks} KV blocks"
                self.condemn(f"{has} and {self._name(other)} {ready.num_blocks}; all need as many")

    def _find_death(self, now: float) -> ExecutorDeath | None:
        if self._fault is not None:
            return ExecutorDeath(self._fault)
        assert self._group is not None, "asked of a group that runs"
        cause = find_cause(
            self._group.find_deaths(),
            self._failures,
            world_size=self._mesh.world_size,
            engine_index=self._engine_index,
        )
        return cause or self._find_stall(now)

    def _find_stall(self, now: float) -> ExecutorDeath | None:
        for rank, watch in self._loading.items():
            if watch.is_overdue(now):
                return self._stalled(watch, f"{self._name(rank)} gave no sign of life while it started")
        if self._stall.is_overdue(now):
            return self._stalled(self._stall, f"{self._name(self._mesh.output_rank)} did not answer a step")
        return None

    def _stalled(self, watch: StallWatch, what: str) -> ExecutorDeath:
        limit = "" if watch.is_announced else " (--stall-limit)"
        return ExecutorDeath(f"{what} for {watch.allowed_s:.3g} s{limit}", came_from_outside=True)

    def _name(self, rank: int) -> str:
        return name_of(rank, self._mesh.world_size, self._engine_index)
