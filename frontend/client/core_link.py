"""A client's lasting link to the cores at one address: one connection after the other, watched by pings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from pagewire.ipc.core_connection import CoreConnection, LostConnection
from pagewire.ipc.errors import EngineDead
from pagewire.ipc.outputs import CoreMessage, Ready
from pagewire.ipc.requests import ClientMessage, Ping

from .handshake import Attacher, Introduction

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 0.25
SILENCE_LIMIT_S = 10.0  # a loaded machine may hold the core up for seconds; a dead process is noticed at once
MAX_HELD_BACK = 4096  # as many as a core would let wait
RECONNECT_LIMIT_S = 60.0  # whoever supervises the core has found it dead, and another one listens
QUIET_LIMIT_S = 0.75  # silent for longer than that, a core does not count as serving
FRESH_S = 0.5  # heard so lately, it need not be asked


class LinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How long a client has patience with a core that says nothing, and with an engine that has none.

    Attributes:
        ping_interval_s: time between signs of life while there is something to wait for.
        silence_limit_s: a connection on which nothing came for so long is given up for another one.
        max_held_back: new requests that may wait for a core; more are refused. 0: no limit.
        reconnect_limit_s: so long after the last sign of any core the engine is taken for dead; None: never.
        on_silence: called at each silence limit, and told whether the core in question has ever said anything; for
            those who can end a core that hangs.
        on_conviction: called when a request has failed because it ends cores: without it, the next may do better.
    """

    ping_interval_s: float = PING_INTERVAL_S
    silence_limit_s: float = SILENCE_LIMIT_S
    max_held_back: int = MAX_HELD_BACK
    reconnect_limit_s: float | None = RECONNECT_LIMIT_S
    on_silence: Callable[[bool], None] = lambda _has_answered: None
    on_conviction: Callable[[], None] = lambda: None


class SilenceReports:
    """Calls `on_silence` at each silence limit of a client that waits for a core to let it in."""

    def __init__(self, options: LinkOptions) -> None:
        self._options = options
        self._next_s = options.silence_limit_s

    def turn_passed(self, attacher: Attacher) -> None:
        """Report if it is time."""
        limit_s = self._options.silence_limit_s
        if attacher.silent_s < limit_s:
            self._next_s = limit_s
        elif attacher.silent_s >= self._next_s:
            self._next_s = attacher.silent_s + limit_s
            self._options.on_silence(attacher.has_answered)


class LinkOwner(Protocol):
    """Whom a link serves."""

    def has_live(self) -> bool:
        """Whether there is something to wait for, so that the core must show that it is there."""
        ...

    def take_messages(self, messages: list[CoreMessage]) -> None:
        """Take what came together."""
        ...

    def core_lost(self) -> None:
        """The connection is gone, and with it all that the core knew of this client."""
        ...

    def core_attached(self, ready: Ready) -> None:
        """Another connection is up; nothing was sent on it yet.

        Raises:
            PagewireError: this is not a core to go on with.
        """
        ...

    def turn_passed(self) -> None:
        """A ping interval is over, with or without a connection."""
        ...

    def link_failed(self, error: Exception) -> None:
        """There will be no further connection."""
        ...


class CoreLink:
    """See the module. It starts out attached, on the connection on which `Ready` came.

    Attributes:
        is_attached: whether a core is there that takes messages.
    """

    def __init__(
        self, introduction: Introduction, options: LinkOptions, connection: CoreConnection, owner: LinkOwner
    ) -> None:
        self.is_attached = False
        self._introduction = introduction
        self._address = introduction.address
        self._options = options
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._is_probing = False
        self._answers: list[asyncio.Future[None]] = []  # of probes that wait for a sign of life
        self._lost = asyncio.Event()
        self._loss = ""  # what became of the connection
        self._has_work = asyncio.Event()
        self._take_over(connection)
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._on_task_end)

    @property
    def is_quiet(self) -> bool:
        """Whether the core owes a sign of life for longer than it should."""
        return self._silent_s > QUIET_LIMIT_S

    def send(self, message: ClientMessage) -> None:
        """Send to the core; without one the message is dropped."""
        if self.is_attached:
            self._connection.send(message)

    def watch(self) -> None:
        """Have the core watched from now on, for as long as the owner has something to wait for."""
        self._has_work.set()

    def lose(self, why: str) -> None:
        """Give up this connection for another one, as nothing more will come on it."""
        self._loss = why
        self._lost.set()
        self._has_work.set()

    async def probe(self, timeout_s: float) -> bool:
        """Return whether the core was heard of lately, or shows a sign of life within `timeout_s`.

        A core that shows none is watched from here on, so that one that hangs is found though nobody waits for it.
        """
        if not self.is_attached:
            return False
        if self._loop.time() - self._heard_at <= FRESH_S:
            return True
        answer: asyncio.Future[None] = self._loop.create_future()
        self._answers.append(answer)
        self._is_probing = True
        self._connection.send(Ping())
        self._has_work.set()
        try:
            async with asyncio.timeout(timeout_s):
                await answer
        except TimeoutError:
            return False
        finally:
            if answer in self._answers:
                self._answers.remove(answer)
        return self.is_attached

    async def aclose(self) -> None:
        """Leave the core. Closing twice is fine."""
        self.stop()
        await asyncio.gather(self._task, return_exceptions=True)
        self._detach()

    def stop(self) -> None:
        """Make no further connection; what comes on this one is still handed over."""
        self.is_attached = False
        self._task.cancel()
        self._settle_probes()

    def _take_over(self, connection: CoreConnection) -> None:
        self._connection = connection
        self._heard_at = self._loop.time()
        self._silent_s = 0.0  # counted in turns of the event loop, see `Attacher`
        self._lost.clear()
        self.is_attached = True
        connection.receive_with(self._receive, self._on_failure)

    def _detach(self) -> None:
        self.is_attached = False
        self._connection.close()
        self._settle_probes()

    async def _run(self) -> None:
        while True:
            why = await self._watch_core()
            logger.warning("the engine at %s %s; its requests are kept", self._address, why)
            self._detach()
            self._owner.core_lost()
            lost_at = self._loop.time()
            connection, ready = await self._attach_anew()
            self._take_over(connection)
            self._owner.core_attached(ready)
            pause_s = self._loop.time() - lost_at
            logger.warning(
                "the engine at %s serves after %.1f s, core epoch %d", self._address, pause_s, ready.core_epoch
            )

    async def _watch_core(self) -> str:
        """Exchange pings while there is something to wait for; return what became of the core."""
        interval_s = self._options.ping_interval_s
        while True:
            if self._lost.is_set():
                return self._loss
            if not (self._owner.has_live() or self._is_probing):
                self._silent_s = 0.0
                self._has_work.clear()
                await self._has_work.wait()
                continue
            if self._silent_s >= self._options.silence_limit_s:
                self._options.on_silence(True)
                return f"has not answered for {self._silent_s:g} s"
            self._silent_s += interval_s
            if not self._connection.has_unsent:
                self._connection.send(Ping())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._lost.wait()
            self._owner.turn_passed()

    async def _attach_anew(self) -> tuple[CoreConnection, Ready]:
        options = self._options
        reports = SilenceReports(options)

        def on_turn(attacher: Attacher) -> None:
            self._owner.turn_passed()
            reports.turn_passed(attacher)
            if options.reconnect_limit_s is not None and attacher.silent_s >= options.reconnect_limit_s:
                raise EngineDead(
                    f"The engine at {self._address} is gone: no core has answered for {attacher.silent_s:g} s."
                )

        return await Attacher(
            self._introduction,
            turn_s=options.ping_interval_s,
            silence_limit_s=options.silence_limit_s,
            on_turn=on_turn,
        ).attach()

    def _receive(self, messages: list[CoreMessage]) -> None:
        self._heard_at = self._loop.time()
        self._silent_s = 0.0
        self._is_probing = False
        if self._answers:
            self._settle_probes()
        self._owner.take_messages(messages)

    def _settle_probes(self) -> None:
        for answer in self._answers:
            if not answer.done():
                answer.set_result(None)
        self._answers.clear()
        self._is_probing = False

    def _on_failure(self, error: Exception) -> None:
        if isinstance(error, LostConnection):
            self.lose("is gone")
        else:
            self._owner.link_failed(error)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._owner.link_failed(error)
