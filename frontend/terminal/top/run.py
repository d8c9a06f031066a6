"""Looks at a server again and again, until q is pressed."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from pagewire.ipc.errors import MachineError, PagewireError

from ..connection import ServerConnection
from ..open_connection import leaving_in_order
from ..plain_console import plain_console
from ..safe_text import safe_text
from .config import TopConfig
from .engine_watch import EngineWatch
from .samples import Sample, rates_between, read_sample
from .view import Frame, draw

_HISTORY = 60  # looks that the curve shows
_LATELY = 15  # looks that latencies and shares are taken over
_QUIT = (b"q", b"Q", b"\x03", b"\x04")

Wait = Callable[[float], bool]


def run(config: TopConfig, console: Console | None = None) -> int:
    """Show a server's figures; return the exit code.

    Raises:
        StartError: the server can't be reached at first, wants a key, or has no metrics.
    """
    console = console or plain_console()
    connection = ServerConnection(config.url, api_key=config.api_key)
    try:
        watch = Watch(connection)
        # A terminal without a cursor to move can't be drawn over.
        if config.once or not (sys.stdin.isatty() and console.is_terminal) or console.is_dumb_terminal:
            time.sleep(config.interval)
            console.print(draw(watch.look()))
            return 0
        with leaving_in_order(), keys_at_once() as wait, Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                live.update(draw(watch.look()), refresh=True)
                if wait(config.interval):
                    return 0
    except KeyboardInterrupt:
        return 0
    finally:
        connection.close()


class Watch:
    """Looks at one server; the first look is taken when it is made.

    Args:
        connection: to the server.
        clock: in seconds; only differences count.

    Raises:
        StartError: as `run`.
    """

    def __init__(self, connection: ServerConnection, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection = connection
        self._clock = clock
        self._samples = deque([self._sample()], maxlen=_LATELY)
        self._engine = EngineWatch(connection)
        self._history: deque[float] = deque(maxlen=_HISTORY)

    def look(self) -> Frame:
        """Return what happened since the last look; a server that is gone meanwhile is waited for."""
        earlier, fault = self._samples[-1], None
        try:
            self._samples.append(self._sample())
        except PagewireError as exc:
            fault = safe_text(exc.message)
        latest = self._samples[-1]
        rates, lately = rates_between(earlier, latest), rates_between(self._samples[0], latest)
        if fault is None:
            self._history.append(rates.output_tokens_s)
        return Frame(self._connection.url, latest, rates, lately, list(self._history), self._engine.cores, fault)

    def _sample(self) -> Sample:
        text = self._connection.get_text("/metrics")
        try:
            sample = read_sample(safe_text(text), self._clock())
        except ValueError as exc:
            raise MachineError(f"{self._connection.url}/metrics can't be read: {exc}") from exc
        if not sample.values:
            raise MachineError(f"{self._connection.url}/metrics tells nothing of a model: it is no server like this.")
        return sample


@contextmanager
def keys_at_once() -> Iterator[Wait]:
    """Take keys as they are pressed; the value waits some seconds for one that quits, and tells whether one came."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def wait(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([descriptor], [], [], left)[0]:
                keys = os.read(descriptor, 1024)
                if not keys or any(key in keys for key in _QUIT):
                    return True
        return False

    try:
        tty.setcbreak(descriptor)
        yield wait
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
