"""One process that renders chat templates, and the socket pair that jobs go through."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from pagewire.ipc.errors import PagewireError, ProtocolError
from pagewire.ipc.process import ChildProcess

from .jobs import HEADER, Loaded, MessageDecoder, Refused, Rendered, Reply

_replies: MessageDecoder[Reply] = MessageDecoder(Reply)


class TemplateChild:
    """A started process. Its jobs are given one after the other.

    Args:
        module: what the process runs.
        name: its tag in the logs.
        log_level: of its logs.
        load: the encoded `LoadTemplate`, its first job.

    Raises:
        OSError: the system starts no process.
    """

    def __init__(self, module: str, *, name: str, log_level: str, load: bytes) -> None:
        self._is_loaded = False
        self._load = load
        # A pair needs no place in the file system, and its end says at once that the process has ended.
        self._pair, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = ChildProcess(
                    module,
                    name=name,
                    address=f"fd:{theirs.fileno()}",
                    runtime_dir=Path("/"),  # it has no sockets
                    log_level=log_level,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError:
                self._pair.close()
                raise
        self._pair.setblocking(False)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def load(self) -> None:
        """Have it compile its template, unless it has.

        Raises:
            InvalidRequest: the template is none.
            EOFError: the process has ended.
            OSError: the same, while it was written to.
            ProtocolError: it answers something else.
        """
        if not self._is_loaded:
            reply = await self._exchange(self._load)
            if not isinstance(reply, Loaded):
                raise _unexpected(reply)
            self._is_loaded = True

    async def ask(self, chat: bytes) -> str:
        """Return the prompt of an encoded `RenderChat`.

        Raises:
            InvalidRequest: the template refuses.
            EOFError, OSError, ProtocolError: as in `load`.
        """
        reply = await self._exchange(chat)
        if not isinstance(reply, Rendered):
            raise _unexpected(reply)
        return reply.text

    async def end(self) -> int:
        """Kill the process unless it has ended, and reap it; return its exit code."""
        self._pair.close()
        # A process that filled its memory takes a while to end.
        await asyncio.to_thread(self._process.kill)
        code = self._process.exit_code
        assert code is not None
        return code

    async def _exchange(self, frame: bytes) -> Reply:
        await asyncio.get_running_loop().sock_sendall(self._pair, frame)
        length = _replies.length(await self._receive(HEADER.size))
        reply = _replies.decode(await self._receive(length))
        if isinstance(reply, Refused):
            raise PagewireError.from_info(reply.error)
        return reply

    async def _receive(self, size: int) -> bytes:
        received = bytearray(size)
        rest = memoryview(received)
        while rest:
            count = await asyncio.get_running_loop().sock_recv_into(self._pair, rest)
            if count == 0:
                raise EOFError("it closed its end")
            rest = rest[count:]
        return bytes(received)


def _unexpected(reply: Reply) -> ProtocolError:
    return ProtocolError(f"an answer of the wrong kind: {type(reply).__name__}")
