"""Llama 3: the answer is `{"name": "f", "parameters": {...}}`, several of them apart by `;`, or text.

`<|python_tag|>` may stand before a call, and lets one come after text. Without it, only an answer that begins with the
call of a tool that was offered is one.

Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/#json-based-tool-calling.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .base import ToolParser

TAG = "<|python_tag|>"
_SEPARATOR = re.compile(r"\s*[;,]?\s*")


class Llama3JsonParser(ToolParser):
    """See the module."""

    @property
    def _tags(self) -> Sequence[str]:
        return (TAG,)

    def _open(self, tag: str) -> None:
        self._begin_call(tag, self._separate, is_marked=True)

    def _start(self) -> bool:
        return self._next_call(len(self._buffer) - len(self._buffer.lstrip()))

    def _separate(self) -> bool:
        """Go on behind a call."""
        separator = _SEPARATOR.match(self._buffer)
        assert separator is not None
        return self._next_call(separator.end())

    def _next_call(self, at: int) -> bool:
        """Begin the call at a place of the buffer, if there is one; what stands before it is then nobody's."""
        rest = self._buffer[at:]
        if TAG.startswith(rest) and rest != TAG:  # nothing yet, or a piece of the tag
            return False
        self._step = self._read_text
        if rest.startswith(TAG):
            self._buffer = rest
        elif rest[0] == "{":
            head, self._buffer = self._buffer[:at], rest
            self._begin_call(head, self._separate, is_marked=False)
        return True
