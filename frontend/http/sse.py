"""Server-sent events over one HTTP answer: framing, keep-alive comments, and an end to readers that don't read.

A handler that waits for tokens must notice two things: its client left (aiohttp cancels the handler), and its client
stopped reading. The second shows as a write that doesn't finish; its connection is cut, so that the handler ends and
its request is aborted. It is never told `[DONE]`: a client that comes back to such a stream must see it broken.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import msgspec
from aiohttp import HttpVersion11, web

DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b": keep-alive\n\n"

NEVER_S = 1e9  # thirty years: as a number, timers need no case for it

SERVER_NAME = "pagewire"  # in each answer, instead of the versions of Python and aiohttp

_HEADERS = {
    "Server": SERVER_NAME,
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold tokens back until its buffer is full
}


class StreamTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long a connection may stay silent, in either direction.

    Attributes:
        head_timeout_s: a client that has begun a request must have sent its head after so long.
        keep_alive_s: a comment is sent after so long without an event; proxies cut silent connections after 30 to 60 s.
        write_timeout_s: a client that takes nothing for so long is cut off.
    """

    head_timeout_s: float = 10.0
    keep_alive_s: float = 15.0
    write_timeout_s: float = 60.0


class EventStream:
    """One answer of server-sent events. `async with` opens it (the status is 200 from there on) and stops its timer.

    `write` may be called by anyone on the event loop; each call's events stay together. It goes past aiohttp's own
    `StreamResponse.write`, whose coroutines would cost a token more than all that is sent.
    """

    def __init__(self, request: web.Request, times: StreamTimes, headers: Mapping[str, str] | None = None) -> None:
        self.response = web.StreamResponse(headers={**_HEADERS, **(headers or {})})
        self._protocol = request.protocol
        self._request = request
        self._times = times
        self._loop = asyncio.get_running_loop()
        self._last_write = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._is_chunked = request.version >= HttpVersion11  # as aiohttp frames an answer of unknown length
        self._num_waiting = 0  # drains that wait for the client to take what was written
        self._waiting_since = 0.0

    async def __aenter__(self) -> EventStream:
        await self.response.prepare(self._request)
        self._arm_timer()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def is_blocked(self) -> bool:
        """Whether the client has yet to take what was written: whoever has more to send waits in `drain`."""
        return self._protocol.writing_paused

    def write(self, events: bytes) -> bool:
        """Write whole events, whether the client keeps up or not.

        Returns:
            Whether it does; see `is_blocked`.

        Raises:
            ConnectionError: the client is gone.
        """
        transport = self._protocol.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        self._last_write = self._loop.time()
        transport.write(b"%x\r\n%b\r\n" % (len(events), events) if self._is_chunked else events)
        return not self._protocol.writing_paused

    async def drain(self) -> None:
        """Wait until the client has taken enough of what was written; a client that takes nothing is cut off.

        Raises:
            ConnectionError: the client is gone.
        """
        if not self.is_blocked:
            return
        if self._num_waiting == 0:
            self._waiting_since = self._loop.time()
        self._num_waiting += 1
        try:
            await self._request.writer.drain()
            self._waiting_since = self._loop.time()  # the client reads: whoever still waits starts anew
        finally:
            self._num_waiting -= 1

    async def send(self, events: bytes) -> None:
        """Write whole events and wait for the client to keep up; errors as `write` and `drain`."""
        self.write(events)
        await self.drain()

    async def finish(self, events: bytes = DONE) -> None:
        """Write the last events and end the answer."""
        await self.send(events)
        await self.response.write_eof()

    def _arm_timer(self) -> None:
        # One timer a stream, looked at a few times per limit: a timer per write would cost more than the write.
        self._timer = self._loop.call_later(min(self._times.keep_alive_s, self._times.write_timeout_s) / 4, self._check)

    def _check(self) -> None:
        now = self._loop.time()
        if self._num_waiting:
            if now - self._waiting_since >= self._times.write_timeout_s:
                self._cut_off()
                return
        elif now - self._last_write >= self._times.keep_alive_s:
            # A client that is gone ends the handler itself; the comment has nobody to tell.
            with contextlib.suppress(ConnectionError):
                self.write(_KEEP_ALIVE)
        self._arm_timer()

    def _cut_off(self) -> None:
        transport = self._request.transport
        if transport is not None:
            transport.abort()


def event(json_body: bytes) -> bytes:
    """Return a JSON text as one event."""
    return b"data: " + json_body + b"\n\n"
