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
        self._drawn_s = float("-inf")

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
        now = self._clock()
        if finished or now - self._drawn_s >= _REDRAW_S:
            self._drawn_s = now
            self._live.update(_Tail(self._drawn(self._rest), self._console), refresh=True)

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
        stripped = line.strip()
        if fence:
            if stripped.startswith(fence) and not stripped.strip(fence[0]):
                fence = ""
        elif stripped.startswith(("```", "~~~")):
            fence = stripped[: len(stripped) - len(stripped.lstrip(stripped[0]))]
        elif not stripped and line.endswith("\n"):
            end = position
    return text[:end], text[end:]


class _Tail:
    """The last lines of something, as many as the screen holds: what is drawn over can't be what scrolled away."""

    def __init__(self, renderable: RenderableType, console: Console) -> None:
        self._renderable = renderable
        self._num_lines = max(1, console.size.height - _MARGIN)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._renderable, options.update(height=None), pad=False)
        for line in lines[-self._num_lines :]:
            yield from line
            yield Segment.line()
