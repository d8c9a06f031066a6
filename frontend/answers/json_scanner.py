"""JSON read one character at a time: whether it is still right, how deep one is, and where it ends."""

from __future__ import annotations

import enum
import re

_SPACE = " \t\n\r"
_ESCAPES = '"\\/bfnrtu'
_HEX = "0123456789abcdefABCDEF"
_SCALAR_CHARACTERS = re.compile(r"[-+.0-9A-Za-z]")
_SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false|null")
_MAX_SCALAR_CHARS = 400
_MAX_DEPTH = 200


class State(enum.Enum):
    """What may come next."""

    VALUE = enum.auto()
    VALUE_OR_END = enum.auto()  # after [
    KEY = enum.auto()  # after a comma in an object
    KEY_OR_END = enum.auto()  # after {
    COLON = enum.auto()
    AFTER = enum.auto()  # a value has ended within an object or a list
    STRING = enum.auto()
    ESCAPE = enum.auto()  # after a backslash
    HEX = enum.auto()  # after \u
    SCALAR = enum.auto()
    DONE = enum.auto()
    BROKEN = enum.auto()


class JsonScanner:
    """Follows one JSON object or list. Strict, but for control characters within strings, which models write.

    Attributes:
        state: what may come next.
        depth: objects and lists that are open.
    """

    def __init__(self) -> None:
        self.state = State.VALUE
        self._open: list[str] = []
        self._is_key = False
        self._scalar = ""
        self._num_hex = 0

    @property
    def depth(self) -> int:
        """How many objects and lists are open."""
        return len(self._open)

    @property
    def is_in_string(self) -> bool:
        """Whether the next character belongs to a string."""
        return self.state in (State.STRING, State.ESCAPE, State.HEX)

    def feed(self, character: str) -> None:
        """Take the next character; the state is BROKEN once the text can't be JSON any more."""
        match self.state:
            case State.STRING:
                if character == '"':
                    self.state = State.COLON if self._is_key else State.AFTER
                elif character == "\\":
                    self.state = State.ESCAPE
            case State.ESCAPE:
                self._num_hex = 0
                self.state = State.HEX if character == "u" else State.STRING
                if character not in _ESCAPES:
                    self.state = State.BROKEN
            case State.HEX:
                self._num_hex += 1
                if character not in _HEX:
                    self.state = State.BROKEN
                elif self._num_hex == 4:
                    self.state = State.STRING
            case State.SCALAR:
                self._continue_scalar(character)
            case _:
                if character not in _SPACE:
                    self._begin(character)

    def _begin(self, character: str) -> None:
        match self.state:
            case State.KEY | State.KEY_OR_END if character == '"':
                self._is_key = True
                self.state = State.STRING
            case State.KEY_OR_END if character == "}":
                self._close("{")
            case State.COLON if character == ":":
                self.state = State.VALUE
            case State.AFTER if character == ",":
                self.state = State.KEY if self._open[-1] == "{" else State.VALUE
            case State.AFTER if character in "}]":
                self._close("{" if character == "}" else "[")
            case State.VALUE_OR_END if character == "]":
                self._close("[")
            case State.VALUE | State.VALUE_OR_END:
                self._begin_value(character)
            case _:
                self.state = State.BROKEN

    def _begin_value(self, character: str) -> None:
        if character in "{[" and len(self._open) < _MAX_DEPTH:
            self._open.append(character)
            self.state = State.KEY_OR_END if character == "{" else State.VALUE_OR_END
        elif not self._open:
            self.state = State.BROKEN  # no object or list
        elif character == '"':
            self._is_key = False
            self.state = State.STRING
        elif _SCALAR_CHARACTERS.match(character):
            self._scalar = character
            self.state = State.SCALAR
        else:
            self.state = State.BROKEN

    def _continue_scalar(self, character: str) -> None:
        if _SCALAR_CHARACTERS.match(character) and len(self._scalar) < _MAX_SCALAR_CHARS:
            self._scalar += character
        elif _SCALAR.fullmatch(self._scalar):
            self.state = State.AFTER
            self.feed(character)
        else:
            self.state = State.BROKEN

    def _close(self, opening: str) -> None:
        if self._open[-1] != opening:
            self.state = State.BROKEN
            return
        self._open.pop()
        self.state = State.AFTER if self._open else State.DONE
