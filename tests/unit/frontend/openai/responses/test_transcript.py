"""What a stream told is told again the same, from any event on, while it grows and after its end."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.frontend.answers.parts import AnswerPart, ReasoningPart, TextPart, ToolCallPart
from pagewire.frontend.openai.bodies.responses import ChatTokenLogprob
from pagewire.frontend.openai.named_events import encode_events
from pagewire.frontend.openai.responses import transcript as transcript_module
from pagewire.frontend.openai.responses.answer import ResponseObject
from pagewire.frontend.openai.responses.events import ResponseEvent
from pagewire.frontend.openai.responses.request import ReasoningConfig
from pagewire.frontend.openai.responses.transcript import Transcript

RESPONSE = ResponseObject(
    id="r", created_at=0, status="in_progress", model="m", reasoning=ReasoningConfig(), temperature=1.0, text={},
    tool_choice="auto", tools=[], top_p=1.0,
)  # fmt: skip


def transcript() -> Transcript:
    ids = itertools.count()
    return Transcript(RESPONSE, lambda prefix: f"{prefix}_{next(ids)}")


def end(made: Transcript, status="completed") -> ResponseEvent:
    return made.end(msgspec.structs.replace(RESPONSE, status=status, output=made.items))


async def told(made: Transcript, after: int = -1) -> bytes:
    """All events behind one, of a transcript that has ended."""
    pages, is_last = [], False
    while not is_last:
        page = await made.page(after)
        after, is_last = page.last_number, page.is_last
        pages.append(page.events)
    return b"".join(pages)


def logprob(text: str) -> ChatTokenLogprob:
    return ChatTokenLogprob(token=text, logprob=-1.0, bytes=list(text.encode()), top_logprobs=[])


_pieces = st.text(max_size=3)
_parts = st.lists(
    st.one_of(
        st.builds(TextPart, _pieces),
        st.builds(ReasoningPart, _pieces),
        st.builds(
            lambda index, text: ToolCallPart(index=index, id=f"c{index}", name="f", arguments=text),
            st.integers(0, 2),
            _pieces,
        ),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=25)
@given(_parts, st.sampled_from(["completed", "incomplete", "failed", "cancelled"]), st.integers(1, 5))
def test_every_suffix_is_told_again_as_it_was(parts: list[AnswerPart], status: str, num_a_page: int):
    made = transcript()
    events = list(made.opening())
    for part in parts:
        events += made.push([part], [logprob("x")])
    events += made.finish("completed") if status == "completed" else made.cut()
    events.append(end(made, status))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transcript_module, "_EVENTS_A_PAGE", num_a_page)
        with asyncio.Runner() as runner:
            for after in range(-1, len(events) + 1):
                assert runner.run(told(made, after)) == encode_events(events[after + 1 :])


async def test_one_that_waits_hears_of_the_next_event(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transcript_module, "_WAIT_S", 60)
    made = transcript()
    opening = await made.page(-1)
    assert (opening.last_number, opening.is_last) == (1, False)
    waiting = [asyncio.create_task(made.page(1)) for _ in range(2)]
    await asyncio.sleep(0)
    events = made.push([TextPart("a")], [])
    assert {page.events for page in await asyncio.gather(*waiting)} == {encode_events(events)}
    waiting = [asyncio.create_task(made.page(events[-1].sequence_number))]
    await asyncio.sleep(0)
    ending = [*made.cut(), end(made, "cancelled")]
    [page] = await asyncio.gather(*waiting)
    assert (page.events, page.is_last) == (encode_events(ending), True)


async def test_a_page_without_events_says_where_to_go_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transcript_module, "_WAIT_S", 0)
    page = await transcript().page(7)
    assert (page.events, page.last_number, page.is_last) == (b"", 7, False)


async def test_nothing_follows_the_end():
    made = transcript()
    last = end(made, "cancelled")
    assert made.push([TextPart("late")], []) == made.finish("completed") == made.cut() == []
    assert end(made) is last
    assert (await made.page(-1)).last_number == last.sequence_number


def test_logprobs_of_text_that_is_held_back_come_with_it():
    made = transcript()
    assert made.push([], [logprob("\u00e9")]) == []
    [*_, first] = made.push([TextPart("\u00e9")], [logprob("b")])
    made.push([], [logprob("c")])
    events = made.finish("completed")
    assert [each.token for each in first.logprobs] == ["\u00e9", "b"]
    assert [each.token for each in events[0].logprobs] == ["c"]
    assert [each.token for each in made.items[0].content[0].logprobs] == ["\u00e9", "b", "c"]


async def test_logprobs_stay_with_their_pieces():
    made = transcript()
    events = made.push([TextPart("ab")], [logprob("a"), logprob("b")])
    events += made.push([TextPart("c")], [logprob("c")])
    assert (await made.page(1)).events == encode_events(events)
    assert made.num_bytes == 2 * 2 * 4
