"""The store keeps what it may, and no more."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from pagewire.frontend.answers.parts import TextPart
from pagewire.frontend.openai.responses.answer import ResponseObject
from pagewire.frontend.openai.responses.request import ReasoningConfig
from pagewire.frontend.openai.responses.store import ResponseStore, StoredResponse
from pagewire.frontend.openai.responses.transcript import Transcript
from pagewire.ipc.errors import InvalidRequest, NotFound


def stored(response_id: str, text: str = "", *, background: bool = False) -> StoredResponse:
    response = ResponseObject(
        id=response_id, created_at=0, status="in_progress", background=background, instructions=text, model="m",
        reasoning=ReasoningConfig(), temperature=1.0, text={}, tool_choice="auto", tools=[], top_p=1.0,
    )  # fmt: skip
    return StoredResponse(response=response, transcript=Transcript(response), items_json=b"[]")


def test_the_oldest_go_first():
    store = ResponseStore(2)
    for name in "abc":
        store.put(stored(name))
    with pytest.raises(NotFound, match="'a' not found"):
        store.get("a")
    assert store.get("b").response.id == "b"
    assert store.get("c").response.id == "c"


def test_bytes_are_bounded_too():
    store = ResponseStore(100, max_bytes=3000)
    for name in "abcd":
        store.put(stored(name, "x" * 1000))
    with pytest.raises(NotFound):
        store.get("b")
    assert store.get("d").response.id == "d"


def test_one_that_is_too_large_is_not_kept():
    store = ResponseStore(100, max_bytes=100)
    store.put(stored("a", "x" * 1000))
    with pytest.raises(NotFound):
        store.get("a")


def test_a_response_replaces_itself():
    store = ResponseStore(2)
    store.put(stored("a"))
    store.put(stored("b"))
    store.put(stored("a", "changed"))
    assert store.get("a").response.instructions == "changed"
    assert store.get("b").response.id == "b"


def test_none_are_kept_at_zero():
    store = ResponseStore(0)
    store.put(stored("a"))
    assert store.is_off
    with pytest.raises(NotFound):
        store.get("a")


def test_only_background_responses_are_cancelled():
    store = ResponseStore(2)
    store.put(stored("a"))
    with pytest.raises(InvalidRequest, match="background"):
        store.cancel("a")


async def test_cancelling_ends_the_task():
    store = ResponseStore(2)
    entry = stored("a", background=True)
    entry.task = asyncio.create_task(asyncio.Event().wait())
    entry.transcript.push([TextPart("so far")], [])
    store.put(entry)
    assert store.cancel("a").status == "cancelled"
    response = store.get("a").response
    assert (response.status, response.output[0].status) == ("cancelled", "incomplete")
    assert response.output[0].content[0].text == "so far"
    assert entry.transcript.has_ended
    with pytest.raises(asyncio.CancelledError):
        await entry.task


def test_a_finished_one_stays_as_it_is():
    store = ResponseStore(2)
    entry = stored("a", background=True)
    entry.response = msgspec.structs.replace(entry.response, status="completed")
    store.put(entry)
    assert store.cancel("a").status == "completed"


def test_deleted_is_gone():
    store = ResponseStore(2)
    store.put(stored("a"))
    store.delete("a")
    with pytest.raises(NotFound):
        store.delete("a")
