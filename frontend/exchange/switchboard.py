"""The launcher's end: it has a line to each frontend, and asks all others what one of them asks.

It outlives them all, so it remembers what those that ended had counted: the sums do not fall when one is replaced.
"""

from __future__ import annotations

import asyncio
import socket

import msgspec

from ..http.figures import Figures, add_figures
from .line import Line
from .messages import Answer, AskEvents, AskFigures, AskLoad, AskResponse, FrontendFigures, Question


class Switchboard:
    """See the module.

    Args:
        num_frontends: as many as there are to be.
    """

    def __init__(self, num_frontends: int) -> None:
        self._num_frontends = num_frontends
        self._lines: dict[int, Line] = {}
        self._last: dict[int, FrontendFigures] = {}
        self._ended = Figures()

    async def attach(self, index: int, sock: socket.socket) -> None:
        """Take a frontend in, and serve it until its end."""

        async def respond(question: Question) -> Answer:
            return await self._gather(index, question)

        self._lines[index] = line = await Line.over(sock, respond)
        try:
            await line.has_ended.wait()
        finally:  # no pause before it is all accounted for: whoever saw the process end cancels this
            del self._lines[index]
            last = self._last.pop(index, None)
            if last is not None:
                self._ended = add_figures([self._ended, last.figures])
            await line.aclose()

    async def _gather(self, asker: int, question: Question) -> Answer:
        """Ask all but the asker; return what they know together."""
        if isinstance(question, AskFigures) and question.own is not None:
            if asker in self._lines:  # else its last ones are accounted for already
                self._last[asker] = question.own
            question = AskFigures()
        others = {index: line for index, line in self._lines.items() if index != asker}
        answers = await asyncio.gather(*(self._ask(index, question) for index in others))
        said = {index: answer for index, answer in zip(others, answers, strict=True) if answer is not None}
        gathered = self._gathered(asker, question, said)
        return msgspec.structs.replace(
            gathered, num_missing=len(others) - len(said), num_ended=self._num_frontends - 1 - len(others)
        )

    async def _ask(self, index: int, question: Question) -> Answer | None:
        line = self._lines[index]
        answer = await line.ask(question)
        # At once: when all others have answered, this one may have a successor, for which it does not speak.
        if answer is not None and answer.figures is not None and self._lines.get(index) is line:
            self._last[index] = answer.figures
        return answer

    def _gathered(self, asker: int, question: Question, said: dict[int, Answer]) -> Answer:
        match question:
            case AskFigures():
                return Answer(figures=self._figures(asker, said))
            case AskLoad():
                return Answer(load=sum(answer.load for answer in said.values()))
            case AskResponse() | AskEvents():
                has_it = (
                    answer
                    for answer in said.values()
                    if answer.found is not None or answer.events is not None or answer.error is not None
                )
                return next(has_it, Answer())

    def _figures(self, asker: int, said: dict[int, Answer]) -> FrontendFigures:
        """Return the others' figures, the last that are known of those that said nothing, and of those that ended."""
        others = [last for index, last in self._last.items() if index != asker]
        processes = {index: families for answer in said.values() if answer.figures is not None
                     for index, families in answer.figures.processes.items()}  # fmt: skip
        return FrontendFigures(add_figures([self._ended, *(last.figures for last in others)]), processes)
