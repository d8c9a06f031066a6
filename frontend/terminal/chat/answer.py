"""One answer: the request's stream to text, and what it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..address import JsonObject
from ..connection import ServerConnection
from .conversation import AnswerStats

Clock = Callable[[], float]


class AnswerReader:
    """Puts the events of a stream together; they may come on another thread than the one that reads the attributes.

    Attributes:
        text: of the answer so far.
        reasoning: what the model thought before it, so far.

    Args:
        on_text: called with what was added to the text, or to the reasoning.
        clock: in seconds; only differences count.
    """

    def __init__(self, on_text: Callable[[str, bool], None], clock: Clock = time.monotonic) -> None:
        self.text = ""
        self.reasoning = ""
        self._on_text = on_text
        self._clock = clock
        self._started_s = clock()
        self._first_s: float | None = None
        self._finish_reason: str | None = None
        self._usage: JsonObject = {}
        self._num_chunks = 0

    def take(self, event: JsonObject) -> None:
        """Take one event of /v1/chat/completions or /v1/completions."""
        self._usage = event.get("usage") or self._usage
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
            text = delta.get("content") or choice.get("text") or ""
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            if text or reasoning:
                self._first_s = self._clock() if self._first_s is None else self._first_s
                self._num_chunks += 1
            if reasoning:
                self.reasoning += reasoning
                self._on_text(reasoning, True)
            if text:
                self.text += text
                self._on_text(text, False)

    def stats(self) -> AnswerStats:
        """Return what it took until now; without the server's count, a chunk counts as a token."""
        now = self._clock()
        details: Any = self._usage.get("prompt_tokens_details") or {}  # Any: of another program
        return AnswerStats(
            num_prompt_tokens=self._usage.get("prompt_tokens", 0),
            num_cached_tokens=details.get("cached_tokens") or 0,
            num_output_tokens=self._usage.get("completion_tokens", self._num_chunks),
            first_token_s=(self._first_s or now) - self._started_s,
            total_s=now - self._started_s,
            finish_reason=self._finish_reason,
        )


def answer_plainly(connection: ServerConnection, path: str, body: JsonObject, write: Callable[[str], None]) -> None:
    """Write an answer's text as it comes, and nothing else; errors as `ServerConnection.stream`."""

    def on_text(text: str, is_reasoning: bool) -> None:
        if not is_reasoning:
            write(text)

    connection.stream(path, body, AnswerReader(on_text).take)
