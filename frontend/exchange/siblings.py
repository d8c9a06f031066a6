"""A frontend's end: what the others know, asked through the launcher."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable

from .line import ANSWER_TIMEOUT_S, Line
from .messages import Answer, AskEvents, AskFigures, AskLoad, AskResponse, FrontendFigures, Question, ResponseAction

logger = logging.getLogger(__name__)

# The launcher itself waits for frontends as long as one may take.
_GATHER_TIMEOUT_S = 1.5 * ANSWER_TIMEOUT_S

Respond = Callable[[Question], Awaitable[Answer]]


class Siblings:
    """The other frontends of one server.

    Args:
        index: which of the frontends this is.
        count: how many there are, with this one.
        line_fd: descriptor of the socket to the launcher, which is taken over.
    """

    def __init__(self, index: int, count: int, line_fd: int) -> None:
        self.index = index
        self.count = count
        self._socket = socket.socket(fileno=line_fd)
        self._line: Line | None = None
        self._is_silent = False

    async def attach(self, respond: Respond) -> None:
        """Answer the others' questions from now on."""
        self._line = await Line.over(self._socket, respond)

    async def aclose(self) -> None:
        """Leave them."""
        if self._line is not None:
            await self._line.aclose()

    async def figures(self, own: FrontendFigures) -> Answer:
        """Return what the others have counted, and leave with the launcher what this one has."""
        return await self._ask(AskFigures(own=own))

    async def load(self) -> Answer:
        """Return how many requests the others are answering."""
        return await self._ask(AskLoad())

    async def response(self, response_id: str, action: ResponseAction) -> Answer:
        """Return a stored response that another one has."""
        return await self._ask(AskResponse(response_id, action))

    async def events(self, response_id: str, after: int) -> Answer:
        """Return events of a stored response that another one has."""
        return await self._ask(AskEvents(response_id, after))

    async def _ask(self, question: Question) -> Answer:
        answer = None if self._line is None else await self._line.ask(question, timeout_s=_GATHER_TIMEOUT_S)
        was_silent, self._is_silent = self._is_silent, answer is None
        if answer is None:
            if not was_silent:  # once: who watches the engine asks each second
                logger.warning("the launcher says nothing of the other frontends")
            return Answer(num_missing=self.count - 1)
        return answer
