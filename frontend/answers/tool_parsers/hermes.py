"""Hermes, Qwen and their kin: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, once for each call.

Source: https://github.com/NousResearch/Hermes-Function-Calling.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..parts import AnswerPart
from .base import ToolParser

OPEN_TAG, CLOSE_TAG = "<tool_call>", "</tool_call>"


class HermesParser(ToolParser):
    """See the module. A closing tag that is missing is not missed."""

    def finish(self) -> list[AnswerPart]:
        """See `PartReader`. The beginning of a closing tag, which a limit cut off, is no text."""
        if self._step == self._close:
            self._buffer = ""
        return super().finish()

    @property
    def _tags(self) -> Sequence[str]:
        return (OPEN_TAG,)

    def _open(self, tag: str) -> None:
        self._begin_call(tag, self._close, is_marked=True)

    def _close(self) -> bool:
        """Take the closing tag off, and the white space before it."""
        bare = self._buffer.lstrip()
        if CLOSE_TAG.startswith(bare) and bare != CLOSE_TAG:
            return False
        self._buffer = bare.removeprefix(CLOSE_TAG)
        self._step = self._read_text
        return True
