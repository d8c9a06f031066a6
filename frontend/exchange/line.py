"""A stream between two processes on which both ask and answer, several questions at a time."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from .messages import Answer, Question

ANSWER_TIMEOUT_S = 1.0  # a frontend's loop may be held for a third of a second by a huge body

# Whoever leaves so much unread stands still; questions that it will not answer in time must not pile up.
MAX_UNSENT_BYTES = 2**20

_LENGTH = struct.Struct("<I")


class _Frame(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    number: int
    question: Question | None = None
    answer: Answer | None = None


_decoder = msgspec.msgpack.Decoder(_Frame)


class Line:
    """See the module.

    Args:
        reader, writer: the stream.
        respond: answers the other end's questions.

    Attributes:
        has_ended: set when the other end is gone, and all that was asked of it.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        respond: Callable[[Question], Awaitable[Answer]],
    ) -> None:
        self.has_ended = asyncio.Event()
        self._reader = reader
        self._writer = writer
        self._respond = respond
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer | None]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def over(cls, sock: socket.socket, respond: Callable[[Question], Awaitable[Answer]]) -> Line:
        """Return the line over a connected socket, which is closed with it."""
        sock.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        return cls(reader, writer, respond)

    async def ask(self, question: Question, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Answer | None:
        """Return the answer to a question; None if there is none in time, or the other end is gone."""
        if self.has_ended.is_set() or self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            return None
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                self._send(_Frame(number, question=question))
                return await self._waiting[number]
        except TimeoutError:
            return None
        finally:
            del self._waiting[number]

    async def aclose(self) -> None:
        """Close the stream; questions under way get no answer."""
        self._reading.cancel()
        await asyncio.wait({self._reading})

    def _send(self, frame: _Frame) -> None:
        payload = msgspec.msgpack.encode(frame)
        self._writer.write(_LENGTH.pack(len(payload)) + payload)

    async def _read(self) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, OSError):
                while True:
                    (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                    self._take(_decoder.decode(await self._reader.readexactly(length)))
        finally:
            self.has_ended.set()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_result(None)
            for answering in self._answering:
                answering.cancel()
            self._writer.close()

    def _take(self, frame: _Frame) -> None:
        if frame.question is not None:
            task = asyncio.create_task(self._answer(frame.number, frame.question))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif frame.number in self._waiting and not self._waiting[frame.number].done():
            self._waiting[frame.number].set_result(frame.answer)

    async def _answer(self, number: int, question: Question) -> None:
        self._send(_Frame(number, answer=await self._respond(question)))
