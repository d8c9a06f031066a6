"""The agent: one poll over the core, the executors of this host, and whoever started it."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
import zmq

from pagewire.ipc.errors import ErrorInfo, MachineError, PagewireError, StartError
from pagewire.ipc.hosts import (
    ARRIVAL_LIMIT_S,
    BEAT_INTERVAL_S,
    SILENCE_LIMIT_S,
    HostBeat,
    HostDismissed,
    HostHello,
    HostRefused,
    HostWelcome,
    KillRank,
    RankEnded,
    StartRank,
    StopRank,
    ToHost,
    WhoAreYou,
)
from pagewire.ipc.process import ChildProcess

from .core_link import CoreLink
from .host_facts import find_free_port

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 1.0
_REMINDER_S = 30.0


class Watch(Protocol):
    """What tells of the end of whoever started the agent, and of its order to stop."""

    @property
    def fds(self) -> list[int]:
        """The descriptors to poll."""


class _State(enum.Enum):
    SEEKING = enum.auto()  # has said hello, or will when there is a connection
    JOINED = enum.auto()


class HostAgent:
    """Obeys one core after the other.

    It holds no state that a core would miss: when a core is lost, so are the executors that it had started, and the
    next one finds a host as good as new.

    Args:
        hello: of this host.
        connect: returns a fresh connection to the core.
        start: starts an executor.
        watch: of whoever started the agent.
        clock: seconds of a monotonic clock.
    """

    def __init__(
        self,
        hello: HostHello,
        connect: Callable[[], CoreLink],
        start: Callable[[StartRank], ChildProcess],
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hello = hello
        self._connect = connect
        self._start = start
        self._watch = watch
        self._clock = clock
        self._executors: dict[tuple[int, int], ChildProcess] = {}  # by epoch and rank
        self._exit_code: int | None = None
        self._link: CoreLink
        self._last_heard = self._next_beat = clock()
        self._seek()
        self._seeking_since = self._next_reminder = self._last_heard

    def run(self) -> int:
        """Serve until the core dismisses this host, or whoever started the agent ends it; return the exit code."""
        try:
            while self._exit_code is None:
                self.turn(BEAT_INTERVAL_S)
            return self._exit_code
        finally:
            self._stop_executors()
            self._link.close()

    def turn(self, timeout_s: float) -> None:
        """Wait for something to happen, and do what it asks for."""
        events = self._poll(timeout_s)
        if any(fd in events for fd in self._watch.fds):
            self._exit_code = 0
            return
        now = self._clock()
        link = self._link
        for message in link.receive():
            self._last_heard = now
            self._handle(message)
            if self._exit_code is not None or self._link is not link:
                return
        self._reap()
        self._look_for_core(now)

    def _poll(self, timeout_s: float) -> dict[int | zmq.Socket[bytes], int]:
        poller = zmq.Poller()
        poller.register(self._link.socket, zmq.POLLIN)
        for fd in self._watch.fds:
            poller.register(fd, zmq.POLLIN)
        for executor in self._executors.values():
            poller.register(executor.death_fd, zmq.POLLIN)
        return dict(poller.poll(int(timeout_s * 1000)))

    def _handle(self, message: ToHost) -> None:
        match message:
            case HostWelcome():
                self._state = _State.JOINED
                logger.info("this host is one of the engine's now")
            case StartRank():
                self._start_rank(message)
            case StopRank() if (executor := self._find(message)) is not None:
                executor.ask_to_stop()
            case KillRank() if (executor := self._find(message)) is not None:
                executor.begin_kill()
            case HostRefused():
                self._end(message.error, "this host was refused")
            case HostDismissed(error=None):
                logger.info("the engine has ended in order")
                self._exit_code = 0
            case HostDismissed():
                assert message.error is not None
                self._end(message.error, "the engine has ended")
            case WhoAreYou():
                self._lose_core("it is another one now")
            case HostBeat() | StopRank() | KillRank():
                pass  # the sign of life was noted; the executor has ended, and the core knows or will

    def _start_rank(self, order: StartRank) -> None:
        try:
            self._executors[order.executor_epoch, order.rank] = self._start(order)
        except OSError as exc:
            logger.error("executor %d can't be started: %s", order.rank, exc.strerror or exc)
            self._tell_end((order.executor_epoch, order.rank), MachineError.exit_code)

    def _find(self, order: StopRank | KillRank) -> ChildProcess | None:
        return self._executors.get((order.executor_epoch, order.rank))

    def _reap(self) -> None:
        for key, executor in list(self._executors.items()):
            code = executor.exit_code
            if code is not None:
                executor.close()
                del self._executors[key]
                self._tell_end(key, code)

    def _tell_end(self, key: tuple[int, int], code: int) -> None:
        epoch, rank = key
        self._link.send(RankEnded(executor_epoch=epoch, rank=rank, exit_code=code, free_port=find_free_port()))

    def _look_for_core(self, now: float) -> None:
        if now - self._last_heard > SILENCE_LIMIT_S:
            self._lose_core(f"it has said nothing for {now - self._last_heard:.1f} s")
        elif now >= self._next_beat:
            self._next_beat = now + BEAT_INTERVAL_S
            if self._state is _State.JOINED:
                self._link.send(HostBeat())
        if self._state is _State.JOINED:
            return
        waited_s = now - self._seeking_since
        if waited_s > ARRIVAL_LIMIT_S:
            error = MachineError(f"The core of host 0 was not there within {ARRIVAL_LIMIT_S:g} s.")
            self._end(error.to_info(), "this host gives up")
        elif now >= self._next_reminder:
            logger.info(
                "host 0 does not answer: it is not there yet, or has another cluster key; waiting up to %.0f s more",
                ARRIVAL_LIMIT_S - waited_s,
            )
            self._next_reminder = now + _REMINDER_S

    def _lose_core(self, why: str) -> None:
        """Kill what the core had started, and look for its successor."""
        if self._state is _State.JOINED:
            logger.error("the core is lost: %s; its executors here are killed", why)
            self._seeking_since = self._next_reminder = self._clock()
        self._kill_executors()
        self._link.close()
        self._seek()

    def _seek(self) -> None:
        self._state = _State.SEEKING
        self._last_heard = self._next_beat = self._clock()
        self._link = self._connect()
        self._link.send(msgspec.structs.replace(self._hello, free_port=find_free_port()))

    def _end(self, info: ErrorInfo, what: str) -> None:
        error = PagewireError.from_info(info)
        logger.error("%s: %s", what, error.message)
        self._exit_code = error.exit_code if isinstance(error, StartError) else MachineError.exit_code

    def _kill_executors(self) -> None:
        for executor in self._executors.values():
            executor.begin_kill()
        for executor in self._executors.values():
            executor.kill()
        self._executors.clear()

    def _stop_executors(self) -> None:
        for executor in self._executors.values():
            executor.ask_to_stop()
        deadline = self._clock() + _STOP_TIMEOUT_S
        for executor in self._executors.values():
            executor.wait(max(deadline - self._clock(), 0.0))
        self._kill_executors()
