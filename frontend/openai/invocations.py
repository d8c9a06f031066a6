"""POST /invocations: the one route that SageMaker knows; the body's shape says which endpoint is meant."""

from __future__ import annotations

import msgspec
from aiohttp import web

from . import chat, completions, embeddings
from .bodies.json_body import JsonBody
from .errors import UnsupportedMediaType


class _Shape(msgspec.Struct):
    """The fields that tell endpoints apart."""

    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_BODY = JsonBody(_Shape)


async def invoke(request: web.Request) -> web.StreamResponse:
    """Answer as the endpoint that takes such a body."""
    shape = await _BODY.read(request)
    for given, answer in (
        (shape.messages, chat.create_chat_completion),
        (shape.prompt, completions.create_completion),
        (shape.input, embeddings.create_embeddings),
    ):
        if given is not msgspec.UNSET:
            return await answer(request)
    raise UnsupportedMediaType("The body fits no endpoint; send messages, a prompt, or an input to embed.")
