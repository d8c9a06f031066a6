"""One HTTP connection, as aiohttp handles it, but for what is no HTTP: that is answered in OpenAI's shape too."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from pagewire.ipc.errors import RequestError

from ..openai.errors import error_response

logger = logging.getLogger(__name__)


class MalformedHTTP(RequestError):
    """The bytes on the connection are no request."""


class HeaderTooLarge(RequestError):
    """A header, or the path, is longer than any client needs."""

    status = 431


class HTTPProtocol(web.RequestHandler):
    """Handles one connection.

    Args:
        write_timeout_s: a TCP client that takes nothing of what was written for so long is cut off.
    """

    __slots__ = ("_write_timeout_s",)

    def __init__(self, manager: web.Server, *, write_timeout_s: float, **options: Any) -> None:
        super().__init__(manager, **options)
        self._write_timeout_s = write_timeout_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        _limit_unacknowledged_time(transport, self._write_timeout_s)

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
        # A body that can't be decompressed ends it too, once the answer is out and aiohttp skips the rest of the body:
        # anybody can send one, to /health as well, and needs no key.
        level = logging.DEBUG if isinstance(options.get("exc_info"), web.RequestPayloadError) else logging.ERROR
        logger.log(level, *args, **options)


def _limit_unacknowledged_time(transport: asyncio.BaseTransport, limit_s: float) -> None:
    """Have the kernel cut a TCP peer that takes nothing for `limit_s`, vanished or asleep.

    Nothing else would end the handler of a whole answer that doesn't fit the socket's buffer. Of a short stream it all
    fits: no write ever blocks, and its peer may still be gone.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limit_s * 1000))
