"""A line whose other end reads nothing."""

from __future__ import annotations

import asyncio
import socket

from pagewire.frontend.exchange.line import MAX_UNSENT_BYTES, Line
from pagewire.frontend.exchange.messages import Answer, AskResponse, Question


async def test_questions_do_not_pile_up_for_one_who_reads_nothing():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=ours)

    async def respond(question: Question) -> Answer:
        return Answer()

    line = Line(reader, writer, respond)
    question = AskResponse("x" * (MAX_UNSENT_BYTES // 2), "get")
    with theirs:
        for _ in range(20):
            assert await line.ask(question, timeout_s=0) is None
        assert writer.transport.get_write_buffer_size() < 2 * MAX_UNSENT_BYTES
    await line.aclose()
