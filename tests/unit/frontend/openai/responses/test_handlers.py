"""/v1/responses as the `openai` package uses it, and as its own types read it."""

from __future__ import annotations

import asyncio
import contextlib

import openai
import pydantic
import pytest
from openai.types import responses as sdk_types
from pydantic import TypeAdapter

from pagewire.frontend.exchange.messages import Answer, EventPage
from pagewire.frontend.openai.responses.shared import SHARED
from pagewire.ipc.errors import EngineDead
from pagewire.ipc.requests import AddRequest
from pagewire.ipc.server_config import ServerConfig
from tests.support.http_server import aborted, running_server


@contextlib.asynccontextmanager
async def sdk(*texts, **options):
    async with (
        running_server(*texts, **options) as server,
        openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="key", max_retries=0) as client,
    ):
        yield server, client


def prompt_of(server) -> str:
    """The text of the last request's prompt."""
    request = [message for message in server.core.received if isinstance(message, AddRequest)][-1]
    ids = request.inputs.prompt_token_ids
    return server.serving.tokenizer.decode(ids, skip_special_tokens=False)


async def test_a_whole_response():
    async with sdk("Hello!") as (_, client):
        response = await client.responses.create(model="fake", input="hi", instructions="be nice", metadata={"a": "b"})
        assert response.output_text == "Hello!"
        assert response.status == "completed"
        assert response.instructions == "be nice"
        assert response.metadata == {"a": "b"}
        assert response.usage.output_tokens == 7
        assert response.usage.total_tokens == response.usage.input_tokens + 7
        assert await client.responses.retrieve(response.id) == response


async def test_bodies_are_what_the_sdk_describes():
    async with running_server("Hello!") as server:
        _, body = await server.post("/v1/responses", input="hi", top_logprobs=1)
        response = TypeAdapter(sdk_types.Response).validate_python(body)
        assert [entry.token for entry in response.output[0].content[0].logprobs][:2] == ["H", "e"]
        assert len(response.output[0].content[0].logprobs[0].top_logprobs) == 1


async def test_a_stream_tells_of_the_response_in_order():
    async with sdk("Hello!") as (_, client):
        stream = await client.responses.create(model="fake", input="hi", stream=True)
        events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello!"
    assert events[-1].response.output_text == "Hello!"
    assert events[-1].response.usage.output_tokens == 7
    adapter = TypeAdapter(sdk_types.ResponseStreamEvent)
    for event in events:
        adapter.validate_python(event.model_dump(exclude_unset=True))


async def test_the_stream_helper_accumulates_the_response():
    async with sdk("Hello!") as (_, client):
        async with client.responses.stream(model="fake", input="hi") as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
        assert final.output_text == "Hello!"
        assert (await client.responses.retrieve(final.id)).output_text == "Hello!"


async def test_a_limit_makes_it_incomplete():
    async with sdk("Hello!") as (_, client):
        response = await client.responses.create(model="fake", input="hi", max_output_tokens=3)
        assert (response.status, response.output_text) == ("incomplete", "Hel")
        assert response.incomplete_details.reason == "max_output_tokens"
        stream = await client.responses.create(model="fake", input="hi", max_output_tokens=3, stream=True)
        assert [event async for event in stream][-1].type == "response.incomplete"


class City(pydantic.BaseModel):
    name: str
    population: int


async def test_the_answer_is_parsed_into_a_model_of_the_clients():
    async with sdk('{"name":"Bern","population":134000}') as (server, client):
        response = await client.responses.parse(model="fake", input="a city", text_format=City)
        assert response.output_parsed == City(name="Bern", population=134000)
        request = await server.core.next(AddRequest)
        assert request.task.grammar.kind == "json_schema"
        assert response.text.format.name == "City"


async def test_going_on_from_a_response_repeats_what_was_said():
    async with sdk("Hello!") as (server, client):
        first = await client.responses.create(model="fake", input="one", instructions="old")
        second = await client.responses.create(model="fake", input="two", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        assert prompt_of(server) == ("<turn>user: one\n<turn>assistant: Hello!\n<turn>user: two\n<turn>assistant: "), (
            "the instructions are not those of the response before"
        )
        await client.responses.create(model="fake", input="three", previous_response_id=second.id)
        assert prompt_of(server).count("Hello!") == 2
        items = [item async for item in client.responses.input_items.list(second.id, order="asc", limit=2)]
        assert len(items) == 3
        assert items[0].content[0].text == "one"


async def test_what_is_not_stored_is_not_found():
    async with sdk("Hello!") as (_, client):
        response = await client.responses.create(model="fake", input="hi", store=False)
        assert response.store is False
        for ask in (
            client.responses.retrieve(response.id),
            client.responses.delete(response.id),
            client.responses.cancel(response.id),
            client.responses.create(model="fake", input="x", previous_response_id=response.id),
        ):
            with pytest.raises(openai.NotFoundError, match="not found"):
                await ask


async def test_deleted_responses_are_gone():
    async with sdk("Hello!") as (_, client):
        response = await client.responses.create(model="fake", input="hi")
        await client.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)


async def test_a_response_in_the_background_is_asked_for_later():
    async with sdk("Hello!") as (server, client):
        response = await client.responses.create(model="fake", input="hi", background=True)
        assert response.status == "in_progress"
        await server.serving.admission.wait_idle()
        done = await client.responses.retrieve(response.id)
        assert (done.status, done.output_text) == ("completed", "Hello!")
        assert (await client.responses.cancel(response.id)).status == "completed"


async def test_cancelling_ends_the_generation():
    async with sdk("Hello!", num_steps=0) as (server, client):
        response = await client.responses.create(model="fake", input="hi", background=True)
        with pytest.raises(openai.BadRequestError, match="in progress"):
            await client.responses.create(model="fake", input="x", previous_response_id=response.id)
        assert (await client.responses.cancel(response.id)).status == "cancelled"
        await aborted(server.core)
        assert (await client.responses.retrieve(response.id)).status == "cancelled"


async def test_a_failure_amid_a_stream_is_an_event():
    async with sdk("Hello!", num_steps=0) as (server, client):
        stream = await client.responses.create(model="fake", input="hi", stream=True)
        events = []
        async for event in stream:
            events.append(event)
            if event.type == "response.in_progress":
                server.client.mark_dead(EngineDead("the engine is gone"))
        assert events[-1].type == "response.failed"
        assert "gone" in events[-1].response.error.message
        assert (await client.responses.retrieve(events[-1].response.id)).status == "failed"


async def test_nothing_is_stored_at_zero():
    async with sdk("Hello!", config=ServerConfig(max_stored_responses=0)) as (_, client):
        assert (await client.responses.create(model="fake", input="hi")).store is False
        with pytest.raises(openai.BadRequestError, match="max-stored-responses"):
            await client.responses.create(model="fake", input="hi", background=True)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"stream_options": {}}, "stream_options"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"background": True, "store": False}, "background"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"input": []}, "input"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
async def test_fields_that_are_not_served_are_refused_by_name(body, param):
    async with running_server("Hello!") as server:
        status, answer = await server.post("/v1/responses", **{"input": "hi", **body})
        assert (status, answer["error"]["param"]) == (400, param)


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "order=up", "after=nobody"])
async def test_pages_that_there_are_not_are_refused(query):
    async with sdk("Hello!") as (server, client):
        response = await client.responses.create(model="fake", input="hi")
        async with server.http.get(f"/v1/responses/{response.id}/input_items?{query}") as answer:
            assert answer.status == 400


@pytest.mark.parametrize(
    "query",
    [
        "starting_after=1", "stream=true&starting_after=-1", "stream=true&starting_after=1234567890", "stream=yes",
        "stream=true&include_obfuscation=true", "include=file_search_call.results", "include[]=nonsense",
    ],
)  # fmt: skip
async def test_what_can_not_be_asked_of_a_stored_response_is_refused_by_name(query):
    async with sdk("Hello!") as (server, client):
        response = await client.responses.create(model="fake", input="hi")
        async with server.http.get(f"/v1/responses/{response.id}?{query}") as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["param"] in query


async def test_a_stream_is_told_again_from_any_event_on():
    async with sdk("Hello!") as (_, client):
        stream = await client.responses.create(model="fake", input="hi", stream=True)
        events = [event async for event in stream]
        response_id = events[-1].response.id
        for after in (None, 0, 5, len(events) - 1):
            options = {} if after is None else {"starting_after": after}
            again = await client.responses.retrieve(response_id, stream=True, **options)
            assert [event async for event in again] == (events if after is None else events[after + 1 :])


async def test_a_whole_answer_is_told_as_one_piece():
    async with sdk("Hello!") as (_, client):
        response = await client.responses.create(model="fake", input="hi")
        events = [event async for event in await client.responses.retrieve(response.id, stream=True)]
        assert [event.delta for event in events if event.type == "response.output_text.delta"] == ["Hello!"]
        assert events[-1].response == response


async def test_a_response_in_the_background_is_followed_live_and_by_whoever_comes_back():
    async with sdk("Hello!", num_steps=2) as (server, client):
        stream = await client.responses.create(model="fake", input="hi", background=True, stream=True)
        events = await until(stream, "He")
        assert (events[0].type, events[0].response.background) == ("response.created", True)
        await stream.close()  # which does not end the response
        again = await client.responses.retrieve(events[0].response.id, stream=True, starting_after=3)
        told = await until(again, "He")
        server.core.allow_steps(None)
        told += [event async for event in again]
        assert text_of(told) == "Hello!"
        assert [event.sequence_number for event in told] == list(range(4, 4 + len(told)))
        assert told[-1].response == await client.responses.retrieve(events[0].response.id)


@pytest.mark.parametrize("action", ["cancel", "delete"])
async def test_what_is_cancelled_or_deleted_ends_its_streams(action):
    async with sdk("Hello!", num_steps=2) as (server, client):
        stream = await client.responses.create(model="fake", input="hi", background=True, stream=True)
        events = await until(stream, "He")
        await getattr(client.responses, action)(events[0].response.id)
        events += [event async for event in stream]
        assert events[-1].type == "response.incomplete"
        assert (events[-1].response.status, events[-1].response.output_text) == ("cancelled", "He")
        assert [event.sequence_number for event in events] == list(range(len(events)))
        await aborted(server.core)


async def test_a_failure_in_the_background_ends_its_streams():
    async with sdk("Hello!", num_steps=2) as (server, client):
        stream = await client.responses.create(model="fake", input="hi", background=True, stream=True)
        events = await until(stream, "He")
        server.client.mark_dead(EngineDead("the engine is gone"))
        events += [event async for event in stream]
        assert [event.type for event in events[-2:]] == ["response.output_item.done", "response.failed"]
        assert "gone" in events[-1].response.error.message


async def until(stream, text: str) -> list:
    """Read events until they have brought so much text: tokens that wait together come in one."""
    events = []
    while text_of(events) != text:
        events.append(await anext(stream))
    return events


def text_of(events: list) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


class OtherFrontends:
    """What another frontend has of a response, as it is asked for it."""

    count = 3

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def events(self, response_id: str, after: int) -> Answer:
        self.asked.append((response_id, after))
        return self.answers.pop(0)


def page(events: bytes, last_number: int, *, is_last: bool = False) -> Answer:
    return Answer(events=EventPage(events=events, last_number=last_number, is_last=is_last))


async def test_events_of_another_frontend_are_passed_on():
    async with running_server("Hello!") as server:
        others = OtherFrontends(
            page(b"data: 1\n\n", 8), Answer(num_missing=1), page(b"", 8), page(b"data: 2\n\n", 9, is_last=True)
        )
        server.app[SHARED]._siblings = others
        async with server.http.get("/v1/responses/far?stream=true&starting_after=7") as answer:
            assert (await answer.text(), answer.status) == ("data: 1\n\ndata: 2\n\n", 200)
        assert others.asked == [("far", 7), ("far", 8), ("far", 8), ("far", 8)]


async def test_a_frontend_that_goes_amid_the_events_is_told_as_an_error():
    async with running_server("Hello!") as server:
        silent = [Answer(num_missing=1)] * 10
        server.app[SHARED]._siblings = OtherFrontends(page(b"data: 1\n\n", 8), *silent)
        async with server.http.get("/v1/responses/far?stream=true") as answer:
            text = await answer.text()
        assert text.startswith("data: 1\n\nevent: error\n")
        assert '"sequence_number":9' in text
        assert "1 of 3 frontends" in text


@pytest.mark.parametrize(("answer", "status"), [(Answer(), 404), (Answer(num_missing=1), 503)])
async def test_events_that_nobody_has_are_an_ordinary_error(answer, status):
    async with running_server("Hello!") as server:
        async with server.http.get("/v1/responses/far?stream=true") as alone:
            assert alone.status == 404
        server.app[SHARED]._siblings = OtherFrontends(answer)
        async with server.http.get("/v1/responses/far?stream=true") as response:
            assert response.status == status


async def test_a_client_that_leaves_ends_its_generation():
    async with sdk("Hello!", num_steps=0) as (server, client):
        task = asyncio.create_task(client.responses.create(model="fake", input="hi"))
        await server.core.next(AddRequest)
        task.cancel()
        await aborted(server.core)
