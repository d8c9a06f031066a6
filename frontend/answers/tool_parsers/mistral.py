"""Mistral: `[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]`, and since 2025 `[TOOL_CALLS]f[ARGS]{...}`.

Source: https://github.com/mistralai/mistral-common (tokens/tokenizers/instruct.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..parts import AnswerPart
from .base import ToolParser

TAG = "[TOOL_CALLS]"
ARGUMENTS_TAG, ID_TAG = "[ARGS]", "[CALL_ID]"
_HEAD = re.compile(r"\s*([A-Za-z0-9_.\-]+)(?:\[CALL_ID\][A-Za-z0-9]*)?(?:\[ARGS\])?\s*(?=\{)")
# What may still become a head: a name, and the tags as far as they are there.
_OPEN_HEAD = re.compile(
    r"\s*(?:[A-Za-z0-9_.\-]+(?:\[(?:C|CA|CAL|CALL|CALL_|CALL_I|CALL_ID)?|\[CALL_ID\][A-Za-z0-9]*)?"
    r"(?:\[(?:A|AR|ARG|ARGS)?|\[ARGS\]\s*)?\s*)?"
)


class MistralParser(ToolParser):
    """See the module."""

    @property
    def _tags(self) -> Sequence[str]:
        return (TAG,)

    def _open(self, tag: str) -> None:
        del tag
        self._step = self._read_head

    def finish(self) -> list[AnswerPart]:
        """See `PartReader`."""
        if self._step == self._read_head:
            self._out.text(TAG)
        return super().finish()

    def _read_head(self) -> bool:
        """Find out which of the two forms follows the tag."""
        bare = self._buffer.lstrip()
        if bare[:1] == "[":
            self._buffer = bare[1:]
            self._begin_call(TAG + "[", self._next_entry, is_marked=True)
            return True
        if bare[:1] == "{":
            self._buffer = bare
            self._begin_call(TAG, self._read_text, is_marked=True)
            return True
        head = _HEAD.match(self._buffer)
        if head is not None:
            self._buffer = self._buffer[head.end() :]
            self._begin_call(TAG + head[0], self._read_text, is_marked=True, name=head[1])
            return True
        if _OPEN_HEAD.fullmatch(self._buffer):
            return False
        self._out.text(TAG)
        self._step = self._read_text
        return True

    def _next_entry(self) -> bool:
        """Go on behind an entry of the list."""
        bare = self._buffer.lstrip()
        if not bare:
            return False
        if bare[0] == ",":
            self._buffer = bare[1:]
            self._begin_call(",", self._next_entry, is_marked=True)
            return True
        self._buffer = bare.removeprefix("]")
        self._step = self._read_text
        return True
