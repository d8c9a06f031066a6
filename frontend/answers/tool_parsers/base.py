"""What the parsers of all formats share: a buffer of undecided text, and steps that take from its front.

A step looks at nothing but the buffer and the parser's state, and waits where the next characters could change what it
would do. So the parts don't depend on how the text was cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

from ..call_object import CallObject, CallStatus
from ..collector import PartCollector
from ..parts import AnswerPart
from ..tags import first_tag, open_tag_length


class ToolParser(ABC):
    """Reads one answer's text and calls; a `PartReader`.

    Args:
        names: the tools that were offered.
        make_id: returns the id of the next call.
        is_parallel: whether an answer may hold several calls.
    """

    def __init__(self, names: Collection[str], make_id: Callable[[], str], *, is_parallel: bool = True) -> None:
        self._names = frozenset(names)
        self._out = PartCollector(make_id, is_parallel=is_parallel)
        self._buffer = ""
        self._step: Callable[[], bool] = self._start
        self._call: CallObject | None = None
        self._call_head = ""  # what stands before the call and is text again if it is none
        self._after_call: Callable[[], bool] = self._read_text

    def push(self, text: str) -> list[AnswerPart]:
        """See `PartReader`."""
        self._buffer += text
        self._run()
        return self._out.take()

    def finish(self) -> list[AnswerPart]:
        """See `PartReader`."""
        while self._call is not None:
            self._give_call_up()
            self._run()
        self._out.text(self._buffer)
        self._buffer = ""
        self._out.finish()
        return self._out.take()

    @property
    @abstractmethod
    def _tags(self) -> Sequence[str]:
        """The tags that end plain text."""

    @abstractmethod
    def _open(self, tag: str) -> None:
        """Go on after a tag, which is off the buffer."""

    def _accepts(self, name: str) -> bool:
        return name in self._names

    def _start(self) -> bool:
        """The first step of an answer."""
        self._step = self._read_text
        return True

    def _run(self) -> None:
        while self._step():
            pass

    def _read_text(self) -> bool:
        """Pass text on, up to a tag."""
        found = first_tag(self._buffer, self._tags)
        if found is None:
            num_decided = len(self._buffer) - open_tag_length(self._buffer, self._tags)
            self._out.text(self._buffer[:num_decided])
            self._buffer = self._buffer[num_decided:]
            return False
        at, tag = found
        self._out.text(self._buffer[:at])
        self._buffer = self._buffer[at + len(tag) :]
        self._open(tag)
        return True

    def _begin_call(self, head: str, after: Callable[[], bool], *, is_marked: bool, name: str | None = None) -> None:
        """Read a call from the buffer's front; a head that only makes sense before a call was taken off it."""
        self._call = CallObject(self._accepts if not is_marked else _accept_all, is_marked=is_marked, name=name)
        self._call_head = head
        self._after_call = after
        self._step = self._read_call

    def _read_call(self) -> bool:
        call = self._call
        assert call is not None
        had_begun = call.has_begun
        end = call.feed(self._buffer)
        self._buffer = self._buffer[end:]
        if call.has_begun:
            if not had_begun:
                assert call.name is not None
                self._out.begin(call.name)
            self._out.arguments(call.take_arguments())
        if call.status is CallStatus.DONE:
            self._call = None
            self._step = self._after_call
        elif call.status is CallStatus.FAILED:
            self._give_call_up()
        else:
            return False
        return True

    def _give_call_up(self) -> None:
        """What is no call is text, in which another call may begin; of one that has begun, the rest is."""
        call = self._call
        assert call is not None
        self._call = None
        self._step = self._read_text
        if not call.has_begun:
            self._out.text(self._call_head)
            self._buffer = call.raw + self._buffer


def _accept_all(_name: str) -> bool:
    """A tag says that it is a call: which tools there are is for the client to say."""
    return True
