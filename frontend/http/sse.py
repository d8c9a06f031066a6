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
from aiohttp import web

DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b": keep-alive\n\n"

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold tokens back until its buffer is full
}


class StreamTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long a stream may stay silent, in either direction.

    Attributes:
        keep_alive_s: a comment is sent after so long without an event; proxies cut silent connections after 30 to 60 s.
        write_timeout_s: a client that takes nothing for so long is cut off.
    """

    keep_alive_s: float = 15.0
    write_timeout_s: float = 60.0


class EventStream:
    """One answer of server-sent events. `async with` opens it (the status is 200 from there on) and stops its timer.

    `send` may be called by several tasks; each call's events stay together.
    """

    def __init__(self, request: web.Request, times: StreamTimes, headers: Mapping[str, str] | None = None) -> None:
        self.response = web.StreamResponse(headers={**_HEADERS, **(headers or {})})
        self._request = request
        self._times = times
        self._loop = asyncio.get_running_loop()
        self._last_write = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._num_blocked = 0  # sends that wait for the client to take what was written
        self._blocked_since = 0.0
        self._keep_alive: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EventStream:
        await self.response.prepare(self._request)
        self._arm_timer()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._keep_alive is not None:
            self._keep_alive.cancel()

    async def send(self, events: bytes) -> None:
        """Write whole events.

        Raises:
            ConnectionError: the client is gone.
        """
        now = self._loop.time()
        self._last_write = now
        if self._num_blocked == 0:
            self._blocked_since = now
        self._num_blocked += 1
        try:
            await self.response.write(events)
        finally:
            self._num_blocked -= 1

    async def finish(self, events: bytes = b"") -> None:
        """Write the last events, `[DONE]`, and end the answer."""
        await self.send(events + DONE)
        await self.response.write_eof()

    def _arm_timer(self) -> None:
        # One timer a stream, looked at a few times per limit: a timer per write would cost more than the write.
        self._timer = self._loop.call_later(min(self._times.keep_alive_s, self._times.write_timeout_s) / 4, self._check)

    def _check(self) -> None:
        now = self._loop.time()
        if self._num_blocked:
            if now - self._blocked_since >= self._times.write_timeout_s:
                self._cut_off()
                return
        elif now - self._last_write >= self._times.keep_alive_s:
            self._keep_alive = asyncio.create_task(self._send_keep_alive())
        self._arm_timer()

    async def _send_keep_alive(self) -> None:
        # A client that is gone ends the handler itself; the comment has nobody to tell.
        with contextlib.suppress(ConnectionError):
            await self.send(_KEEP_ALIVE)

    def _cut_off(self) -> None:
        transport = self._request.transport
        if transport is not None:
            transport.abort()


def event(json_body: bytes) -> bytes:
    """Return a JSON text as one event."""
    return b"data: " + json_body + b"\n\n"
