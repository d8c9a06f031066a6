"""One HTTP connection, as aiohttp handles it, but for what is no HTTP, and for peers that are slow on purpose.

What is no HTTP is answered in OpenAI's shape too. A peer that trickles its request's head, or that takes nothing of its
answer, holds a connection and memory; each has a time limit.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from pagewire.ipc.errors import RequestError

from ..openai.errors import HeadTimeout, describe_error, encode_error, error_response
from .sse import SERVER_NAME, StreamTimes

logger = logging.getLogger(__name__)

# What a reader that is merely slow takes: an answer's time limit grows by what is still to be sent at this rate.
SLOWEST_READER_BYTES_PER_S = 16 * 2**10


class MalformedHTTP(RequestError):
    """The bytes on the connection are no request."""


class HeaderTooLarge(RequestError):
    """A header, or the path, is longer than any client needs."""

    status = 431


class HTTPProtocol(web.RequestHandler):
    """Handles one connection.

    Args:
        times: how long a head may take to arrive, and how long the client may take nothing of what was written.
    """

    __slots__ = ("_connection", "_head_timer", "_times", "_write_timer")

    def __init__(self, manager: web.Server, times: StreamTimes, **options: Any) -> None:
        super().__init__(manager, **options)
        self._times = times
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        transport = cast("asyncio.Transport", transport)
        self._connection = transport  # aiohttp forgets it when it closes, with what is still to be sent
        _limit_unacknowledged_time(transport, self._times.write_timeout_s)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See `asyncio.Protocol`."""
        self._stop_head_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        # While it waits for a request, this is part of one: its head must be complete in time.
        if self._waiter is None or self._waiter.done():
            self._stop_head_timer()
        elif self._head_timer is None:
            self._head_timer = self._loop.call_later(self._times.head_timeout_s, self._refuse_slow_head)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        # An event stream has its own limit, which sees less at a time; this one ends the wait of a whole answer.
        num_unsent = self._connection.get_write_buffer_size()
        limit_s = self._times.write_timeout_s + num_unsent / SLOWEST_READER_BYTES_PER_S
        self._write_timer = self._loop.call_later(limit_s, self._connection.abort)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().resume_writing()
        self._stop_write_timer()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; what aiohttp itself refuses, before any of our handlers, takes OpenAI's shape."""
        if isinstance(resp, web.HTTPException):
            resp = error_response(resp)
        if not resp.prepared:
            resp.headers["Server"] = SERVER_NAME
        return await super().finish_response(request, resp, start_time)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what never reached a handler, or what a handler could not answer itself; then close.

        Raises:
            ConnectionError: the client is gone, or an answer has begun: nothing more can be said.
        """
        if isinstance(exc, ConnectionError) or request.writer.output_size > 0:
            raise ConnectionError("the client is gone, or an answer has begun") from exc
        error: Exception
        if isinstance(exc, LineTooLong):
            error = HeaderTooLarge("A header or the path is too long; send at most 8 KiB in each.")
        elif status < 500:
            # The public internet sends all sorts of things to a port: nothing to wake somebody for.
            logger.debug("malformed HTTP from %s: %s", request.remote, message)
            error = MalformedHTTP("This is not a valid HTTP request.")
        else:
            logger.error("a request from %s failed outside of its handler", request.remote, exc_info=exc)
            error = RuntimeError(message)
        response = error_response(error)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Log what ended the connection's task; Any: what `logging` takes."""
        # A body of malformed chunks ends it too, once the answer is out and aiohttp skips the rest of the body: anybody
        # can send one, to /health as well, and needs no key.
        level = logging.DEBUG if isinstance(options.get("exc_info"), web.RequestPayloadError) else logging.ERROR
        logger.log(level, *args, **options)

    def _refuse_slow_head(self) -> None:
        if self.transport is not None:
            error = HeadTimeout(f"The request's head did not arrive within {self._times.head_timeout_s:g} s.")
            status, body = describe_error(error)
            content = encode_error(body)
            self.transport.write(
                b"HTTP/1.1 %d Request Timeout\r\nConnection: close\r\nContent-Type: application/json; charset=utf-8\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (status, len(content), content)
            )
        self.force_close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _limit_unacknowledged_time(transport: asyncio.BaseTransport, limit_s: float) -> None:
    """Have the kernel cut a TCP peer that takes nothing for `limit_s`, vanished or asleep.

    Of a short answer it all fits the socket's buffer: no write ever blocks, and its peer may still be gone.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limit_s * 1000))
