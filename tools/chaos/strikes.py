"""Kills and stops the processes of a server, and watches how it comes back."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import aiohttp

from tools.processes import Process
from tools.watched_server import CORE, EXECUTOR, WatchedServer

from .streams import Clients

Action = Literal["kill", "stop"]

_SIGNALS: dict[Action, signal.Signals] = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_NAMES = {CORE: "core", EXECUTOR: "executor"}
_DECK_SIZE = 20
_LOOK_S = 0.05  # between two looks at /health and at the processes
_BACK_WITHIN_S = 90.0
_STRAY_LIMIT_S = 2.0  # what lives so long without its parent is an orphan
_DURING_PREFILL = 0.3  # share of the strikes that wait for a long prompt
_MAX_PREFILL_WAIT_S = 1.0
_AFTER_RECOVERY_S = (0.5, 2.0)  # until the next strike, where it had to wait for the server


class Strike(NamedTuple):
    """One disturbance.

    Attributes:
        time_s: by the monotonic clock.
        target: core or executor.
        is_while_recovering: the server was not yet back from the strike before.
        num_prefilling: streams that waited for their first token.
    """

    time_s: float
    target: str
    action: Action
    process: Process
    is_while_recovering: bool
    num_prefilling: int


class NeverBack(Exception):
    """The server did not come back."""


class HealthWatch:
    """What /health and /live said, looked at all the time.

    Attributes:
        outages: (from, to) by the monotonic clock, when /health was no 200; `to` is infinite while it lasts.
        is_serving: what /health said last.
        num_failed_live: looks at /live that were no 200.
    """

    def __init__(self, url: str) -> None:
        self.outages: list[tuple[float, float]] = []
        self.is_serving = True
        self.num_failed_live = 0
        self._url = url

    async def run(self) -> None:
        """Watch until cancelled."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            while True:
                asked_s = time.monotonic()
                self._note(await _is_ok(session, f"{self._url}/health"), asked_s)
                if not self.is_serving:
                    self.num_failed_live += not await _is_ok(session, f"{self._url}/live")
                await asyncio.sleep(_LOOK_S)

    def _note(self, is_ok: bool, now: float) -> None:
        if is_ok and not self.is_serving:
            self.outages[-1] = (self.outages[-1][0], now)
        if not is_ok and self.is_serving:
            self.outages.append((now, float("inf")))
        self.is_serving = is_ok


async def _is_ok(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


class Striker:
    """Strikes a random process at random moments.

    Two strikes at most hit a server that has not come back between them: a third could be the second start in a row
    that fails, and the engine would give up, as it should.

    Attributes:
        strikes: all so far.
        orphans: processes that outlived their parent.
    """

    def __init__(
        self,
        server: WatchedServer,
        clients: Clients,
        health: HealthWatch,
        rng: random.Random,
        *,
        every_s: tuple[float, float],
        share_of_stops: float,
        share_during_restarts: float,
        waits_for_recovery: bool,
    ) -> None:
        """Strike every so many seconds, counted from the last strike or from when the server was back from it.

        Args:
            server, clients, health: what is struck, and who sees it.
            rng: draws the moments, the targets and the actions.
            every_s: least and most seconds between two strikes.
            share_of_stops: how many of them stop a process; the others kill it.
            share_during_restarts: how many strikes are followed by another one while the server still recovers.
            waits_for_recovery: whether the seconds are counted from when the server is back.
        """
        self.strikes: list[Strike] = []
        self.orphans: set[int] = set()
        self._server = server
        self._clients = clients
        self._health = health
        self._rng = rng
        self._every_s = every_s
        self._share_of_stops = share_of_stops
        self._share_during_restarts = share_during_restarts
        self._waits_for_recovery = waits_for_recovery
        self._deck: list[tuple[str, Action]] = []
        self._unanswered: list[Strike] = []  # strikes that the server is not back from
        self._strays: dict[tuple[int, int], float] = {}

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Strike until it is over.

        Raises:
            NeverBack: the server is gone, or does not serve within a minute and a half of a strike.
        """
        while not is_over():
            await self._wait_for_the_moment()
            if is_over():
                return
            await self._strike(*self._draw())
        await self.wait_until_back()

    async def wait_until_back(self) -> None:
        """Wait until each process that was struck is replaced and the server serves.

        Raises:
            NeverBack: see `run`.
        """
        deadline = time.monotonic() + _BACK_WITHIN_S
        while not await self._is_back():
            if self._server.exit_code is not None:
                raise NeverBack(f"the server has ended with exit code {self._server.exit_code}")
            if time.monotonic() > deadline:
                raise NeverBack(f"the server did not serve within {_BACK_WITHIN_S} s of a strike")
            await asyncio.sleep(_LOOK_S)

    async def _is_back(self) -> bool:
        for strike in self._unanswered:
            replacement = self._server.find(CORE if strike.target == "core" else EXECUTOR)
            if strike.process.is_same_and_running or replacement is None:
                return False
        if self._unanswered:
            # A new process is there before /health is read again: what it said a moment ago may still be from before.
            await asyncio.sleep(2 * _LOOK_S)
        if not self._health.is_serving:
            return False
        self._unanswered.clear()
        self._find_orphans()
        return True

    def _find_orphans(self) -> None:
        now = time.monotonic()
        strays = {(process.pid, process.started) for process in self._server.strays()}
        self._strays = {key: self._strays.get(key, now) for key in strays}
        self.orphans |= {pid for (pid, _), since_s in self._strays.items() if now - since_s > _STRAY_LIMIT_S}

    async def _wait_for_the_moment(self) -> None:
        pause_s = self._rng.uniform(*self._every_s)
        kind = self._rng.random()
        if kind < self._share_during_restarts and len(self._unanswered) == 1:
            await asyncio.sleep(self._rng.uniform(0.1, 1.5))
            return
        if self._waits_for_recovery:
            await self.wait_until_back()
            await asyncio.sleep(pause_s)
        else:
            await asyncio.sleep(pause_s)
            if len(self._unanswered) > 1 and not await self._is_back():
                await self.wait_until_back()
                await asyncio.sleep(self._rng.uniform(*_AFTER_RECOVERY_S))
        if kind > 1 - _DURING_PREFILL:
            self._clients.prefill_began.clear()
            try:
                await asyncio.wait_for(self._clients.prefill_began.wait(), _MAX_PREFILL_WAIT_S)
            except TimeoutError:
                return
            await asyncio.sleep(self._rng.uniform(0.02, 0.3))

    def _draw(self) -> tuple[str, Action]:
        """Return the next of a shuffled deck, so that every kind has its share of even a short run."""
        if not self._deck:
            num_stops = round(self._share_of_stops * _DECK_SIZE)
            actions: list[Action] = ["stop" if index < num_stops else "kill" for index in range(_DECK_SIZE)]
            self._deck = [((CORE, EXECUTOR)[index % 2], action) for index, action in enumerate(actions)]
            self._rng.shuffle(self._deck)
        return self._deck.pop()

    async def _strike(self, module: str, action: Action) -> None:
        deadline = time.monotonic() + _BACK_WITHIN_S
        while (process := self._server.find(module)) is None:  # between a death and the next start
            if time.monotonic() > deadline or self._server.exit_code is not None:
                raise NeverBack(f"no {_NAMES[module]} runs; exit code of the server: {self._server.exit_code}")
            await asyncio.sleep(_LOOK_S)
        is_while_recovering = not await self._is_back()
        strike = Strike(
            time_s=time.monotonic(),
            target=_NAMES[module],
            action=action,
            process=process,
            is_while_recovering=is_while_recovering,
            num_prefilling=self._clients.num_prefilling,
        )
        try:
            os.kill(process.pid, _SIGNALS[action])
        except ProcessLookupError:  # it fell with a process that was struck before
            return
        self.strikes.append(strike)
        self._unanswered.append(strike)
        self._clients.note_strike(strike.time_s)
