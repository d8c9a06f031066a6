"""Stored responses, wherever they are: each is kept by the frontend that made it, and any frontend is asked for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from aiohttp import web

from pagewire.ipc.errors import NotFound, Overloaded, PagewireError

from ...exchange.messages import Answer, AskEvents, AskResponse, EventPage, FoundResponse, ResponseAction
from ...exchange.siblings import Siblings
from ..bodies.json_body import encode_json
from .store import JsonObject, ResponseStore

# A frontend that is busy for a moment must not end a stream; one that says nothing for so many questions in a row does.
_TRIES_AMID_A_STREAM = 10


class SharedResponses:
    """See the module.

    Args:
        store: of this frontend.
        siblings: the other frontends; None: there are none.
    """

    def __init__(self, store: ResponseStore, siblings: Siblings | None) -> None:
        self._store = store
        self._siblings = siblings

    async def find(
        self, response_id: str, action: ResponseAction = "get", *, param: str = "response_id"
    ) -> FoundResponse:
        """Return a stored response, of which `delete` and `cancel` are done as well.

        Raises:
            NotFound: there is none of this id, or not any more.
            InvalidRequest: it is to be cancelled, and is not made in the background.
            Overloaded: it was not found, and a frontend that may have it does not answer.
        """
        try:
            return self._do(response_id, action, param=param)
        except NotFound:
            if self._siblings is None:
                raise
            answer = await self._siblings.response(response_id, action)
            if answer.error is not None:
                raise PagewireError.from_info(answer.error) from None
            if answer.found is not None:
                return answer.found
            raise self._not_found(response_id, answer, param=param) from None

    async def pages(self, response_id: str, after: int) -> AsyncGenerator[EventPage]:
        """Yield the events of a stored response that follow the one of number `after`, live from where it is now on.

        Pages may be empty; the last one has `is_last`.

        Raises:
            NotFound, Overloaded: as `find`. Once there was a page: the frontend that has the response is gone, or the
                response is.
        """
        transcript = self._store.transcript(response_id)
        num_tries, is_last = 1, False
        while not is_last:
            if transcript is None:
                page = await self._page_of_others(response_id, after, num_tries)
            else:
                page = await transcript.page(after)
            after, is_last = page.last_number, page.is_last
            yield page
            num_tries = _TRIES_AMID_A_STREAM

    async def answer_events(self, question: AskEvents) -> Answer:
        """Return what this frontend alone has of the events."""
        transcript = self._store.transcript(question.response_id)
        return Answer(events=None if transcript is None else await transcript.page(question.after))

    async def _page_of_others(self, response_id: str, after: int, num_tries: int) -> EventPage:
        if self._siblings is None:
            raise self._store.not_found(response_id)
        for _ in range(num_tries):
            answer = await self._siblings.events(response_id, after)
            if answer.events is not None:
                return answer.events
            if not answer.num_missing:
                break
        raise self._not_found(response_id, answer)

    def answer(self, question: AskResponse) -> Answer:
        """Return what this frontend alone has of it."""
        try:
            return Answer(found=self._do(question.response_id, question.action, param="response_id"))
        except NotFound:
            return Answer()
        except PagewireError as error:
            return Answer(error=error.to_info())

    def _not_found(self, response_id: str, answer: Answer, *, param: str = "response_id") -> PagewireError:
        assert self._siblings is not None
        if not answer.num_missing:
            return self._store.not_found(response_id, param=param)
        return Overloaded(
            f"{answer.num_missing} of {self._siblings.count} frontends do not answer, and the response may be there; "
            "try again.",
            param=param,
        )

    def _do(self, response_id: str, action: ResponseAction, *, param: str) -> FoundResponse:
        if action == "cancel":
            self._store.cancel(response_id)
        stored = self._store.get(response_id, param=param)
        if action == "delete":
            self._store.delete(response_id)
        return FoundResponse(encode_json(stored.response), stored.items_json)


def items_of(found: FoundResponse) -> list[JsonObject]:
    """Return the input that a response answered."""
    return msgspec.json.decode(found.items_json, type=list[JsonObject])


def fields_of(found: FoundResponse) -> dict[str, Any]:  # Any: JSON
    """Return a response's fields as clients see them."""
    return msgspec.json.decode(found.response_json, type=dict[str, Any])


SHARED = web.AppKey("shared_responses", SharedResponses)
