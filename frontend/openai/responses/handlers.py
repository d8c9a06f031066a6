"""POST /v1/responses, and what clients ask of stored responses."""

from __future__ import annotations

import asyncio
import contextlib
import uuid

import msgspec
from aiohttp import web

from pagewire.ipc.errors import InvalidRequest

from ...http.sse import EventStream
from ..bodies.json_body import JsonBody, json_response
from ..bodies.schema import refuse_unsupported
from ..chat_call import start_chat
from ..errors import describe_error, log_error
from ..named_events import encode_events
from ..serving import SERVING, Serving, request_id
from ..streaming import stream_events
from .answer import DeletedResponse, InputItemList, ResponseObject
from .answering import Answering
from .conversation import chat_request, input_items
from .events import ResponseError
from .request import ResponseRequest
from .shared import SHARED, SharedResponses, fields_of, items_of
from .store import STORE, JsonObject, ResponseStore

_BODY = JsonBody(ResponseRequest)
_DEFAULT_PAGE, _MOST_A_PAGE = 20, 100
_MOST_DIGITS = 9  # no stream has a billion events
_INCLUDED = ("message.output_text.logprobs", "reasoning.encrypted_content")  # they are there if they were asked for


async def create_response(request: web.Request) -> web.StreamResponse:
    """Answer an input, streamed or whole, or in the background."""
    serving, store = request.app[SERVING], request.app[STORE]
    body = await _BODY.read(request)
    _check(body, store)
    history = await _history(body, request.app[SHARED])
    own = [_with_id(item) for item in input_items(body)]
    response_id = f"resp_{uuid.uuid4().hex}"
    async with contextlib.AsyncExitStack() as stack:
        chat = await stack.enter_async_context(
            start_chat(serving, request, chat_request(body, history, own), response_id)
        )
        answering = Answering(serving, store, body, [*history, *own], chat, response_id)
        if body.background:
            await chat.call.accepted()
            response = await _go_on_in_background(serving, answering, stack.pop_all())
            if body.stream:
                return await _tell(request, response.id, after=-1)
            return json_response(response, request_id(request))
        if body.stream:
            return await stream_events(
                request,
                serving,
                chat.call,
                answering,
                opening=answering.opening(),
                ending=answering.ending,
                failure=answering.failure,
            )
        return json_response(await answering.collect(), request_id(request))


async def retrieve_response(request: web.Request) -> web.StreamResponse:
    """Return a stored response, or what its stream told and, if it is still made, tells from now on."""
    wants_stream = _flag(request, "stream")
    after = _event_number(request)
    for name in request.query.getall("include", []) + request.query.getall("include[]", []):
        if name not in _INCLUDED:
            raise InvalidRequest(f"include can't be {name[:100]!r}: it must be one of {_INCLUDED}.", param="include")
    if _flag(request, "include_obfuscation"):
        raise InvalidRequest("include_obfuscation can only be false.", param="include_obfuscation")
    if wants_stream:
        return await _tell(request, request.match_info["response_id"], after=-1 if after is None else after)
    if after is not None:
        raise InvalidRequest("starting_after is only allowed with stream=true.", param="starting_after")
    found = await request.app[SHARED].find(request.match_info["response_id"])
    return _raw_response(found.response_json, request)


async def cancel_response(request: web.Request) -> web.Response:
    """End a response that is made in the background."""
    found = await request.app[SHARED].find(request.match_info["response_id"], "cancel")
    return _raw_response(found.response_json, request)


async def delete_response(request: web.Request) -> web.Response:
    """Forget a stored response."""
    response_id = request.match_info["response_id"]
    await request.app[SHARED].find(response_id, "delete")
    return json_response(DeletedResponse(id=response_id), request_id(request))


async def list_input_items(request: web.Request) -> web.Response:
    """Return a page of what a stored response answered, the newest first unless `order` is asc."""
    items = items_of(await request.app[SHARED].find(request.match_info["response_id"]))
    order = request.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order must be asc or desc; got {order[:100]!r}.", param="order")
    if order == "desc":
        items = items[::-1]
    after = request.query.get("after")
    if after is not None:
        place = next((index for index, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise InvalidRequest(f"after names no item of this response: {after[:100]!r}.", param="after")
        items = items[place + 1 :]
    page = items[: _page_size(request)]
    return json_response(
        InputItemList(
            data=page,
            first_id=page[0]["id"] if page else None,
            last_id=page[-1]["id"] if page else None,
            has_more=len(page) < len(items),
        ),
        request_id(request),
    )


async def _tell(request: web.Request, response_id: str, *, after: int) -> web.StreamResponse:
    """Answer with the events of a stored response that follow the one of number `after`, until its end."""
    serving = request.app[SERVING]
    async with contextlib.aclosing(request.app[SHARED].pages(response_id, after)) as pages:
        page = await anext(pages)
        async with EventStream(request, serving.times, {"X-Request-Id": request_id(request)}) as stream:
            try:
                while not page.is_last:
                    if page.events:
                        await stream.send(page.events)
                    page = await anext(pages)
                last = page.events
            except ConnectionError:
                raise
            except Exception as error:  # the boundary of a started answer: whatever it is, the client is told
                log_error(error, request_id(request))
                last = _error_event(error, page.last_number + 1)
            if last:
                await stream.send(last)
            await stream.response.write_eof()
    return stream.response


def _error_event(error: Exception, number: int) -> bytes:
    told = describe_error(error)[1]
    event = ResponseError(sequence_number=number, code=told.code, message=told.message, param=told.param)
    return encode_events([event])


def _flag(request: web.Request, name: str) -> bool:
    text = request.query.get(name, "false")
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"{name} must be true or false; got {text[:100]!r}.", param=name)
    return text.lower() == "true"


def _event_number(request: web.Request) -> int | None:
    text = request.query.get("starting_after")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise InvalidRequest(
            f"starting_after must be the sequence_number of an event; got {text[:100]!r}.", param="starting_after"
        )
    return int(text)


def _page_size(request: web.Request) -> int:
    text = request.query.get("limit", str(_DEFAULT_PAGE))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:4]) <= _MOST_A_PAGE):
        raise InvalidRequest(f"limit must be from 1 to {_MOST_A_PAGE}; got {text[:100]!r}.", param="limit")
    return int(text)


def _check(body: ResponseRequest, store: ResponseStore) -> None:
    refuse_unsupported(body)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is only allowed with stream: true.", param="stream_options")
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise InvalidRequest(
            f"max_output_tokens must be at least 1, or null; got {body.max_output_tokens}.", param="max_output_tokens"
        )
    if body.background and body.store is False:
        raise InvalidRequest("background: true needs store: the response is asked for later.", param="background")
    if body.background and store.is_off:
        raise InvalidRequest("This server stores no responses (--max-stored-responses 0).", param="background")


def _raw_response(body: bytes, request: web.Request) -> web.Response:
    return json_response(msgspec.Raw(body), request_id(request))


async def _history(body: ResponseRequest, responses: SharedResponses) -> list[JsonObject]:
    """Return the items of the responses that a request goes on from."""
    if body.previous_response_id is None:
        return []
    previous = await responses.find(body.previous_response_id, param="previous_response_id")
    response = fields_of(previous)
    if response["status"] in ("queued", "in_progress"):
        raise InvalidRequest(
            "The previous response is still in progress; wait until it has ended.", param="previous_response_id"
        )
    return [*items_of(previous), *response["output"]]


def _with_id(item: JsonObject) -> JsonObject:
    return item if item.get("id") else {**item, "id": f"{_ID_PREFIXES.get(item['type'], 'item')}_{uuid.uuid4().hex}"}


_ID_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


async def _go_on_in_background(
    serving: Serving, answering: Answering, stack: contextlib.AsyncExitStack
) -> ResponseObject:
    """Answer after the handler's end; return the response as it is now."""
    response = answering.response

    async def answer() -> None:
        # A drain waits for it as for an answer that somebody listens to.
        async with stack:
            with serving.admission.answering():
                try:
                    await answering.follow()
                except Exception as error:  # the boundary of an answer that nobody listens to: it is stored
                    log_error(error, answering.response.id)
                    answering.fail(error)

    stored = answering.save()
    assert stored is not None
    stored.task = asyncio.create_task(answer())
    await asyncio.sleep(0)  # a task that is cancelled before it begins would leave the chat running
    return response
