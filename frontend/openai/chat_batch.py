"""POST /v1/chat/completions/batch: several conversations in one request, one answer each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from pagewire.ipc.errors import InvalidRequest

from .bodies.json_body import JsonBody, json_response
from .bodies.responses import ChatResponse, add_usages
from .bodies.schema import MAX_MESSAGES, ChatMessage, ChatRequest
from .chat import whole_answer
from .chat_call import start_chat
from .serving import SERVING, request_id, request_label

MAX_CONVERSATIONS = 1024

_Conversation = Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


class BatchChatRequest(ChatRequest, kw_only=True):
    """POST /v1/chat/completions/batch: a chat's fields, with a list of conversations as `messages`."""

    messages: Annotated[  # type: ignore[assignment]  # a list of what it stands for
        list[_Conversation], Meta(min_length=1, max_length=MAX_CONVERSATIONS)
    ]


_BODY = JsonBody(BatchChatRequest)


async def create_chat_completions(request: web.Request) -> web.Response:
    """Answer several conversations with the same fields, whole; they share the engine's steps."""
    serving = request.app[SERVING]
    body = await _BODY.read(request)
    for name, neutral in (("stream", False), ("n", 1), ("use_beam_search", False)):
        if getattr(body, name) not in (None, neutral):
            raise InvalidRequest(f"{name} does not go with a batch: each conversation has one answer.", param=name)
    label = "chatcmpl-" + request_label(request, body)
    async with contextlib.AsyncExitStack() as stack:
        chats = [
            await stack.enter_async_context(start_chat(serving, request, each, f"{label}-{index}"))
            for index, each in enumerate(_split(body))
        ]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(whole_answer(serving, chat)) for chat in chats]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the first failure ended the others
        return json_response(_join(label, [task.result() for task in tasks]), request_id(request))


def _split(body: BatchChatRequest) -> list[ChatRequest]:
    fields = {name: getattr(body, name) for name in ChatRequest.__struct_fields__}
    return [ChatRequest(**{**fields, "messages": conversation}) for conversation in body.messages]


def _join(label: str, answers: Sequence[ChatResponse]) -> ChatResponse:
    """Return the answers as one, each a choice of its conversation's index."""
    choices = [msgspec.structs.replace(answer.choices[0], index=index) for index, answer in enumerate(answers)]
    usage = add_usages([answer.usage for answer in answers])
    return ChatResponse(id=label, created=answers[0].created, model=answers[0].model, choices=choices, usage=usage)
