"""Calls written as Python: `[f(a=1), g(b="x")]`, as Llama 4, LFM2 and others write them.

Without a tag before the list, only an answer that begins with the call of a tool that was offered is one. Arguments are
given by name and are literals.

Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama4/#-zero-shot-function-calling-.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Sequence
from typing import Any

from ..parts import AnswerPart
from .base import ToolParser

START_TAGS = ("<|python_start|>", "<|tool_call_start|>")
END_TAGS = ("<|python_end|>", "<|tool_call_end|>")
_NAME = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.\-]*)?(\()?")
_JSON_NAMES = {"true": True, "false": False, "null": None}
_MAX_CALL_CHARS = 200_000  # Python reads them in a tenth of a second


class PythonicParser(ToolParser):
    """See the module. A call's arguments come when it is whole: only then they can be written as JSON."""

    _head = ""  # taken off the buffer, and text again if no call follows
    _is_marked = False  # a tag says that calls follow
    _scanned = 0  # of the buffer, within a call
    _depth = 0
    _quote = ""
    _escapes = False

    @property
    def _tags(self) -> Sequence[str]:
        return START_TAGS

    def _open(self, tag: str) -> None:
        self._head = tag
        self._is_marked = True
        self._step = self._open_list

    def finish(self) -> list[AnswerPart]:
        """See `PartReader`."""
        self._out.text(self._head)
        self._head = ""
        return super().finish()

    def _start(self) -> bool:
        bare = self._buffer.lstrip()
        if not bare:
            return False
        self._step = self._open_list if bare[0] == "[" else self._read_text
        return True

    def _open_list(self) -> bool:
        bare = self._buffer.lstrip()
        if not bare:
            return False
        if bare[0] != "[":
            return self._give_up()
        self._take(len(self._buffer) - len(bare) + 1)
        self._step = self._read_name
        return True

    def _take(self, count: int) -> None:
        """Take characters off the buffer that are text again if no call follows."""
        self._head += self._buffer[:count]
        self._buffer = self._buffer[count:]

    def _read_name(self) -> bool:
        """Wait for the name of a tool and its bracket."""
        match = _NAME.match(self._buffer)
        assert match is not None
        name = match[1] or ""
        if match[2] and (name in self._names or (self._is_marked and name)):
            self._scanned, self._depth, self._quote, self._escapes = match.end(), 1, "", False
            self._step = self._read_call_text
            return True
        may_follow = self._is_marked or any(offered.startswith(name) for offered in self._names)
        if match.end() == len(self._buffer) and not match[2] and may_follow:
            return False
        return self._give_up()

    def _read_call_text(self) -> bool:
        """Find the bracket that closes the call."""
        while self._scanned < len(self._buffer) and self._depth:
            self._scan(self._buffer[self._scanned])
            self._scanned += 1
        if self._scanned > _MAX_CALL_CHARS:
            return self._give_up()
        if self._depth:
            return False
        match = _NAME.match(self._buffer)
        assert match is not None
        arguments = _read_arguments(self._buffer[match.end(1) : self._scanned])
        if arguments is None:
            return self._give_up()
        self._head = ""
        self._buffer = self._buffer[self._scanned :]
        self._out.begin(match[1])
        self._out.arguments(arguments)
        self._step = self._separate
        return True

    def _scan(self, character: str) -> None:
        if self._quote:
            if self._escapes:
                self._escapes = False
            elif character == "\\":
                self._escapes = True
            elif character == self._quote:
                self._quote = ""
        elif character in "'\"":
            self._quote = character
        elif character in "([{":
            self._depth += 1
        elif character in ")]}":
            self._depth -= 1

    def _separate(self) -> bool:
        """Go on behind a call: another one, or the end of the list."""
        bare = self._buffer.lstrip()
        if not bare:
            return False
        if bare[0] == ",":
            self._take(len(self._buffer) - len(bare) + 1)
            self._step = self._read_name
            return True
        self._buffer = bare.removeprefix("]")
        self._step = self._end
        return True

    def _end(self) -> bool:
        bare = self._buffer.lstrip()
        if any(tag.startswith(bare) and tag != bare for tag in END_TAGS):
            return False
        for tag in END_TAGS:
            bare = bare.removeprefix(tag)
        self._buffer = bare
        self._step = self._read_text
        return True

    def _give_up(self) -> bool:
        self._out.text(self._head)
        self._head = ""
        self._step = self._read_text
        return True


def _read_arguments(text: str) -> str | None:
    """Return the arguments of a call, brackets and all, as JSON; None if they are no named literals."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes that Python doesn't know
            expression = ast.parse("f" + text, mode="eval").body
        if not isinstance(expression, ast.Call) or expression.args:
            return None
        arguments: dict[str, Any] = {}  # Any: JSON values
        for keyword in expression.keywords:
            if keyword.arg is None:
                return None
            arguments[keyword.arg] = _literal(keyword.value)
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        written.encode()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return written


def _literal(node: ast.expr) -> Any:  # Any: a JSON value
    match node:
        case ast.Constant(value=str() | int() | float() | None):
            return node.value
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_literal(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return dict(zip((_key(key) for key in keys), map(_literal, values), strict=True))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case _:
            raise ValueError("no literal")


def _key(node: ast.expr | None) -> str:
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        raise ValueError("no text")
    return node.value
