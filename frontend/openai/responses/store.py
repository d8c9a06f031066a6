"""Responses that clients may ask for again or go on from: in memory, bounded by count and by bytes, the oldest go."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

import msgspec
from aiohttp import web

from pagewire.ipc.errors import InvalidRequest, NotFound

from ..bodies.json_body import encode_json
from .answer import ResponseObject
from .transcript import Transcript

JsonObject = dict[str, Any]  # Any: items as clients wrote them, checked by then

MAX_STORED_BYTES = 256 * 2**20


class StoredResponse(msgspec.Struct, kw_only=True):
    """A response and what it answered.

    Attributes:
        transcript: what its stream told, or would have.
        items_json: the input, that of the responses which it goes on from and their outputs among it. As JSON, which
            takes a fraction of the memory that it takes as objects.
        task: what still makes it, in the background.
        num_bytes: how much it counts.
    """

    response: ResponseObject
    transcript: Transcript
    items_json: bytes
    task: asyncio.Task[None] | None = None
    num_bytes: int = 0

    @property
    def items(self) -> list[JsonObject]:
        """The input, taken apart."""
        return msgspec.json.decode(self.items_json, type=list[JsonObject])


class ResponseStore:
    """The responses of one server process.

    Args:
        max_responses: that are kept; 0 keeps none.
        max_bytes: that they may have as JSON, all together.
    """

    def __init__(self, max_responses: int, max_bytes: int = MAX_STORED_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._num_bytes = 0

    @property
    def is_off(self) -> bool:
        """Whether nothing is kept."""
        return self._max_responses == 0

    def put(self, stored: StoredResponse) -> None:
        """Keep a response, or what became of it; others go for it, the oldest first."""
        response_id = stored.response.id
        self._drop(response_id)
        if self.is_off:
            return
        stored.num_bytes = len(encode_json(stored.response)) + len(stored.items_json) + stored.transcript.num_bytes
        self._stored[response_id] = stored
        self._num_bytes += stored.num_bytes
        while len(self._stored) > self._max_responses or self._num_bytes > self._max_bytes:
            oldest = next(iter(self._stored))
            self._end(self._stored[oldest])
            self._drop(oldest)

    def get(self, response_id: str, *, param: str = "response_id") -> StoredResponse:
        """Return a response.

        Raises:
            NotFound: there is none of this id, or not any more.
        """
        stored = self._stored.get(response_id)
        if stored is None:
            raise self.not_found(response_id, param=param)
        return stored

    def transcript(self, response_id: str) -> Transcript | None:
        """Return what a response's stream tells; None if there is none of this id."""
        stored = self._stored.get(response_id)
        return None if stored is None else stored.transcript

    def not_found(self, response_id: str, *, param: str = "response_id") -> NotFound:
        """Return the error that says that there is none of this id."""
        return NotFound(
            f"Response with id '{response_id[:100]}' not found: it was never stored, or is gone by now "
            f"(this server process keeps the last {self._max_responses} in memory).",
            param=param,
        )

    def delete(self, response_id: str) -> None:
        """Forget a response; one that is still made in the background is ended.

        Raises:
            NotFound: there is none of this id.
        """
        self._end(self.get(response_id))
        self._drop(response_id)

    def cancel(self, response_id: str) -> ResponseObject:
        """End what is made in the background; one that has ended by itself stays as it is.

        Raises:
            NotFound: there is none of this id.
            InvalidRequest: it isn't made in the background.
        """
        stored = self.get(response_id)
        if not stored.response.background:
            raise InvalidRequest(
                "Only responses with background: true can be cancelled; end others by closing their connection.",
                param="response_id",
            )
        self._end(stored)
        return stored.response

    def end_all(self) -> None:
        """End all that is made in the background."""
        for stored in self._stored.values():
            self._end(stored)

    def _end(self, stored: StoredResponse) -> None:
        if stored.task is None or stored.transcript.has_ended:
            return
        stored.task.cancel()
        stored.transcript.cut()
        stored.response = msgspec.structs.replace(stored.response, status="cancelled", output=stored.transcript.items)
        stored.transcript.end(stored.response)

    def _drop(self, response_id: str) -> None:
        stored = self._stored.pop(response_id, None)
        if stored is not None:
            self._num_bytes -= stored.num_bytes


STORE = web.AppKey("responses", ResponseStore)
