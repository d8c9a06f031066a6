"""Markdown while it streams: blocks that are over stay as they are, the last one is drawn anew as it grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

from ..safe_text import safe_text

_REDRAW_S = 0.08
_PAUSE_BY_COST = 3.0  # after drawing what is long: most of the time is for what comes
_MARGIN = 2  # lines of the screen that the growing block leaves free


class MarkdownStream:
    """Draws one answer on a terminal; a context manager.

    Args:
        console: of the terminal.
        clock: in seconds; only differences count.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._rest = ""
        self._is_reasoning = False
        self._next_draw_s = float("-inf")

    def __enter__(self) -> MarkdownStream:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.update(Text(""), refresh=True)
        self._live.stop()
        self._print(self._rest)

    def add(self, text: str, is_reasoning: bool) -> None:
        """Take the next piece of the answer, or of what the model thinks before it."""
        if is_reasoning != self._is_reasoning:
            self._print(self._rest)
            self._rest, self._is_reasoning = "", is_reasoning
        finished, self._rest = split_finished(self._rest + safe_text(text))
        self._print(finished)
        began = self._clock()
        if finished or began >= self._next_draw_s:
            num_lines = max(1, self._console.size.height - _MARGIN)
            self._live.update(_Tail(self._drawn(without_early_code(self._rest, num_lines)), num_lines), refresh=True)
            ended = self._clock()
            self._next_draw_s = ended + max(_REDRAW_S, _PAUSE_BY_COST * (ended - began))

    def _print(self, text: str) -> None:
        if text.strip():
            self._live.console.print(self._drawn(text))

    def _drawn(self, text: str) -> RenderableType:
        return Text(text.strip(), style="dim italic") if self._is_reasoning else Markdown(text)


def split_finished(text: str) -> tuple[str, str]:
    """Return the blocks of a Markdown text that nothing that follows can change, and the rest.

    A block is over at an empty line outside of fenced code.
    """
    position = end = 0
    fence = ""
    for line in text.splitlines(keepends=True):
        position += len(line)
        fence = _fence_after(line, fence)
        if not fence and not line.strip() and line.endswith("\n"):
            end = position
    return text[:end], text[end:]


def without_early_code(text: str, num_lines: int) -> str:
    """Return a Markdown text; if it ends within fenced code, with the last so many lines of that alone."""
    lines = text.splitlines(keepends=True)
    fence, begin = "", 0
    for number, line in enumerate(lines, start=1):
        was_open, fence = bool(fence), _fence_after(line, fence)
        if fence and not was_open:
            begin = number
    return "".join([*lines[:begin], *lines[max(begin, len(lines) - num_lines) :]]) if fence else text


def _fence_after(line: str, fence: str) -> str:
    """Return what will end the code that is open after a line, "" if none is; `fence` is that before the line."""
    stripped = line.strip()
    if fence:
        return "" if stripped.startswith(fence) and not stripped.strip(fence[0]) else fence
    is_fence = stripped.startswith(("```", "~~~"))
    return stripped[: len(stripped) - len(stripped.lstrip(stripped[0]))] if is_fence else ""


class _Tail:
    """The last lines of something, as many as the screen holds: what is drawn over can't be what scrolled away."""

    def __init__(self, renderable: RenderableType, num_lines: int) -> None:
        self._renderable = renderable
        self._num_lines = num_lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._renderable, options.update(height=None), pad=False)
        for line in lines[-self._num_lines :]:
            yield from line
            yield Segment.line()
