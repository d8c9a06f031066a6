"""A call written as a JSON object, `{"name": "f", "arguments": {...}}`, read as it comes.

The arguments are passed on while they are written, from the moment at which it is certain that this is a call: its name
is known and its arguments have begun as an object. What turns out to be no call before that is given back as text.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable

from .json_scanner import JsonScanner, State

NAME_KEYS = ("name",)
ARGUMENTS_KEYS = ("arguments", "parameters")
# What models write around them, as they saw it in a template.
_OTHER_KEYS = ("type", "id", "function", "index")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_MAX_NAME_CHARS = 256


class CallStatus(enum.Enum):
    """Where a call is."""

    OPEN = enum.auto()
    DONE = enum.auto()
    FAILED = enum.auto()


class CallObject:
    """One call.

    Args:
        accepts: whether a name may be called.
        is_marked: a tag says that this is a call. Without one, an object with other keys than a call's is none.
        name: the name, where it stands before the object; the whole object is the arguments then.

    Attributes:
        status: FAILED once it is known to be no call, or its arguments break off.
        has_begun: whether it is certain to be a call.
        name: the tool's name, once it is known.
        raw: the text that was taken, without arguments that are passed on; after a failure it is what is to be shown,
            unless the call has begun.
    """

    def __init__(self, accepts: Callable[[str], bool], *, is_marked: bool, name: str | None = None) -> None:
        self.status = CallStatus.OPEN
        self.has_begun = False
        self.name: str | None = None
        self.raw = ""
        self._accepts = accepts
        self._is_marked = is_marked
        self._is_bare = name is not None
        self._scanner = JsonScanner()
        self._key: str | None = None
        self._value_at = -1  # where the value at depth 1 that is being read begins
        self._key_at = 0
        self._arguments: list[str] = []  # not yet passed on
        self._reads_arguments = False
        self._argument_text: str | None = None  # of a value that is no object
        self._seen_arguments = False
        if name is not None:
            self._set_name(name)

    def feed(self, text: str, at: int = 0) -> int:
        """Take characters of `text` from `at` on; return where it stopped: at the end, or behind what it is."""
        while at < len(text) and self._is_open:
            if self._scanner.state is State.STRING and (plain := _PLAIN.match(text, at)):
                self._take(plain[0])
                at = plain.end()
            elif self._feed_one(text[at]):
                at += 1
        return at

    def take_arguments(self) -> str:
        """Return what was added to the arguments since the last time; empty until the call has begun."""
        if not self.has_begun:
            return ""
        taken = "".join(self._arguments)
        self._arguments.clear()
        return taken

    def _take(self, text: str) -> None:
        self._keep(text)
        if self._reads_arguments:
            self._arguments.append(text)

    def _keep(self, text: str) -> None:
        """Keep what may have to be shown, or read again: not arguments that are passed on."""
        if not (self.has_begun and self._reads_arguments):
            self.raw += text

    def _feed_one(self, character: str) -> bool:
        """Take a character; False if it is no part of the call: it breaks one that has begun."""
        scanner = self._scanner
        before, depth, was_in_string = scanner.state, scanner.depth, scanner.is_in_string
        scanner.feed(character)
        if scanner.state is State.BROKEN or (self._is_bare and depth == 0 and character not in "{ \t\n\r"):
            self.status = CallStatus.FAILED
            if self.has_begun:
                return False
            self.raw += character
            return True
        if self._is_bare:
            if depth == 0 and character == "{":
                self._begin_arguments()
        elif depth == 1:
            self._note_before(before, character)
        self._keep(character)
        if self._reads_arguments:
            # A raw line break within a string is a model's slip: clients get JSON.
            is_slip = was_in_string and character < " "
            self._arguments.append(json.dumps(character)[1:-1] if is_slip else character)
        if not self._is_bare:
            self._note_after(before, depth)
        if scanner.state is State.DONE and self._is_open:
            self._end()
        return True

    @property
    def _is_open(self) -> bool:
        return self.status is CallStatus.OPEN

    def _note_before(self, before: State, character: str) -> None:
        """Note what begins with a character in the outer object."""
        if before in (State.KEY, State.KEY_OR_END) and character == '"':
            self._key_at = len(self.raw)
        elif before is State.VALUE and self._scanner.state is not State.VALUE:
            self._value_at = len(self.raw)
            if self._key in ARGUMENTS_KEYS and character == "{" and not self._seen_arguments:
                self._begin_arguments()
        elif before is State.SCALAR and self._scanner.state is not State.SCALAR:
            self._end_value()

    def _note_after(self, before: State, depth: int) -> None:
        """Note what ends with a character in the outer object."""
        scanner = self._scanner
        if scanner.state is State.COLON and scanner.depth == 1 and before is State.STRING:
            self._key = _loads_text(self.raw[self._key_at :])
            if not self._is_marked and self._key not in (*NAME_KEYS, *ARGUMENTS_KEYS, *_OTHER_KEYS):
                self.status = CallStatus.FAILED
        elif scanner.state is State.AFTER and scanner.depth == 1 and (before is State.STRING or depth == 2):
            self._end_value()

    def _begin_arguments(self) -> None:
        self._value_at = len(self.raw)
        self._reads_arguments = self._seen_arguments = True
        self.has_begun = self.name is not None

    def _end_value(self) -> None:
        if self._value_at < 0:
            return
        value = self.raw[self._value_at :]
        self._value_at = -1
        if self._reads_arguments:
            self._reads_arguments = False
        elif self._key in ARGUMENTS_KEYS and not self._seen_arguments:
            self._seen_arguments = True
            self._argument_text = value
        elif self._key in NAME_KEYS and self.name is None:
            name = _loads_text(value)
            if name is None:
                self.status = CallStatus.FAILED
            else:
                self._set_name(name)

    def _set_name(self, name: str) -> None:
        if not 0 < len(name) <= _MAX_NAME_CHARS or not _is_unicode(name) or not self._accepts(name):
            self.status = CallStatus.FAILED
            return
        self.name = name
        self.has_begun = self._seen_arguments and self._argument_text is None

    def _end(self) -> None:
        """The object is whole: a call whose arguments are none, or no object, is decided here."""
        if not self.has_begun:
            arguments = _arguments_of(self._argument_text)
            if self.name is None or arguments is None:
                self.status = CallStatus.FAILED
                return
            self._arguments = [arguments]
            self.has_begun = True
        self.status = CallStatus.DONE


def _arguments_of(text: str | None) -> str | None:
    """Return the arguments as a JSON object: none are {}, and some models write the object as a string."""
    if text is None or text == "null":
        return "{}"
    inner = _loads_text(text)
    if inner is None or not _is_unicode(inner):
        return None
    if not inner.strip():
        return "{}"
    try:
        return inner if isinstance(json.loads(inner), dict) else None
    except (ValueError, RecursionError):
        return None


def _loads_text(text: str) -> str | None:
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
