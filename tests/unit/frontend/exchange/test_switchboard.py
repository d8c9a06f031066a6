"""What a frontend is told of the others, over real sockets: sums, silence, and what the dead had counted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pagewire.frontend.exchange import line as line_module
from pagewire.frontend.exchange import siblings as siblings_module
from pagewire.frontend.exchange.messages import (
    Answer,
    AskFigures,
    AskLoad,
    EventPage,
    FoundResponse,
    FrontendFigures,
    ProcessFamily,
    Question,
)
from pagewire.frontend.exchange.siblings import Siblings
from pagewire.frontend.exchange.switchboard import Switchboard
from pagewire.frontend.http.figures import Figures


def wait_for_answers(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(line_module.Line.ask, "__kwdefaults__", {"timeout_s": seconds})


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is silent for being slow."""
    wait_for_answers(monkeypatch, 60.0)
    monkeypatch.setattr(siblings_module, "_GATHER_TIMEOUT_S", 60.0)


def counted(number: int, index: int) -> FrontendFigures:
    return FrontendFigures(Figures({("requests",): number}), {index: [ProcessFamily("p", "P", "gauge", [])]})


class Frontend:
    """One that says how much it has counted."""

    def __init__(self, index: int, number: int) -> None:
        self.index = index
        self.number = number
        self.response = Answer()

    async def respond(self, question: Question) -> Answer:
        match question:
            case AskFigures():
                return Answer(figures=counted(self.number, self.index))
            case AskLoad():
                return Answer(load=self.number)
            case _:
                return self.response


@asynccontextmanager
async def attached(
    board: Switchboard, index: int, respond: Callable[[Question], Awaitable[Answer]], count: int = 3
) -> AsyncIterator[Siblings]:
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(board.attach(index, ours))
    siblings = Siblings(index, count, theirs.detach())
    await siblings.attach(respond)
    while index not in board._lines:  # noqa: ASYNC110 - the board has no event for it
        await asyncio.sleep(0)
    try:
        yield siblings
    finally:
        await siblings.aclose()
        await serving


async def sum_of(siblings: Siblings, number: int) -> float:
    answer = await siblings.figures(counted(number, siblings.index))
    assert answer.figures is not None
    return answer.figures.figures.counters.get(("requests",), 0) + number


async def test_all_are_summed_and_the_dead_go_on_counting():
    board = Switchboard(3)
    first, second, third = Frontend(0, 10), Frontend(1, 20), Frontend(2, 40)
    async with attached(board, 0, first.respond) as asker:
        async with attached(board, 1, second.respond), attached(board, 2, third.respond) as other:
            assert await sum_of(asker, 10) == await sum_of(other, 40) == 70
            answer = await asker.figures(counted(10, 0))
            assert answer.figures is not None
            assert sorted(answer.figures.processes) == [1, 2]
            assert (await asker.load()).load == 60
        assert await sum_of(asker, 10) == 70
        answer = await asker.load()
        assert (answer.load, answer.num_missing, answer.num_ended) == (0, 0, 2)
        async with attached(board, 1, Frontend(1, 1).respond):
            assert await sum_of(asker, 10) == 71


async def test_the_dead_count_however_their_end_is_heard_of_first():
    for num_pauses in range(8):
        board = Switchboard(2)
        ours, theirs = socket.socketpair()
        serving = asyncio.create_task(board.attach(1, ours))
        dying = Siblings(1, 2, theirs.detach())
        await dying.attach(Frontend(1, 20).respond)
        async with attached(board, 0, Frontend(0, 10).respond) as asker:
            assert await sum_of(asker, 10) == 30
            line = board._lines[1]
            await dying.aclose()
            if num_pauses:
                await line.has_ended.wait()
            for _ in range(num_pauses):
                await asyncio.sleep(0)
            serving.cancel()
            await asyncio.wait({serving})
            async with attached(board, 1, Frontend(1, 0).respond, 2):
                assert await sum_of(asker, 10) == 30


async def test_silent_one_is_said_and_counts_as_it_last_did(monkeypatch: pytest.MonkeyPatch):
    board, stands_still = Switchboard(2), asyncio.Event()
    second = Frontend(1, 20)

    async def respond(question: Question) -> Answer:
        if stands_still.is_set():
            await asyncio.Event().wait()
        return await second.respond(question)

    async with attached(board, 0, Frontend(0, 10).respond) as asker, attached(board, 1, respond):
        assert await sum_of(asker, 10) == 30
        stands_still.set()
        wait_for_answers(monkeypatch, 0.01)
        answer = await asker.figures(counted(11, 0))
        assert answer.num_missing == 1
        assert answer.figures is not None
        assert answer.figures.figures.counters == {("requests",): 20}


async def test_what_one_said_before_its_end_is_not_counted_for_its_successor():
    board, goes_on = Switchboard(3), asyncio.Event()
    second = Frontend(1, 20)

    async def respond_late(question: Question) -> Answer:
        await goes_on.wait()
        return Answer(figures=counted(40, 2))

    async with attached(board, 0, Frontend(0, 10).respond) as asker, attached(board, 2, respond_late):
        async with attached(board, 1, second.respond):
            asking = asyncio.create_task(sum_of(asker, 10))
            async with asyncio.timeout(5):
                while 1 not in board._last:  # noqa: ASYNC110 - the board has no event for it
                    await asyncio.sleep(0)
        async with attached(board, 1, Frontend(1, 0).respond):
            goes_on.set()
            assert await asking == 70


async def test_silence_of_the_launcher_is_logged_once(caplog: pytest.LogCaptureFixture):
    ours, theirs = socket.socketpair()
    siblings = Siblings(0, 2, theirs.detach())
    await siblings.attach(Frontend(0, 0).respond)
    ours.close()
    for _ in range(3):
        assert (await siblings.load()).num_missing == 1
    await siblings.aclose()
    assert [record.message for record in caplog.records].count("the launcher says nothing of the other frontends") == 1


async def test_response_is_found_where_it_is():
    board = Switchboard(2)
    first, second = Frontend(0, 0), Frontend(1, 0)
    async with attached(board, 0, first.respond) as asker, attached(board, 1, second.respond):
        assert (await asker.response("resp_1", "get")).found is None
        second.response = Answer(found=FoundResponse(b"{}", b"[]"))
        assert (await asker.response("resp_1", "get")).found == FoundResponse(b"{}", b"[]")
        page = EventPage(events=b"data: 1\n\n", last_number=3, is_last=False)
        second.response = Answer(events=page)
        assert (await asker.events("resp_1", 2)).events == page


async def test_without_a_launcher_all_others_are_missing():
    ours, theirs = socket.socketpair()
    siblings = Siblings(0, 3, theirs.detach())
    await siblings.attach(Frontend(0, 0).respond)
    ours.close()
    assert (await siblings.load()).num_missing == 2
    await siblings.aclose()
