"""The engine's own picture as text: a map of its blocks, and bars of its requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from .engine_watch import CorePicture, RunningRequest

_MAP_WIDTH, _MAP_LINES = 64, 2
_MAX_REQUESTS = 6
_BAR_WIDTH = 24
# State -> how it is drawn, the most telling last: of blocks that share a character, the highest state is shown.
_MARKS = {"0": ("·", "dim"), "1": ("░", "cyan"), "2": ("▓", "green"), "3": ("█", "magenta")}
LEGEND = "· free  ░ cached  ▓ used  █ shared"


def engine_rows(cores: Sequence[CorePicture]) -> Iterator[tuple[str, RenderableType]]:
    """Yield (title, what is drawn) of each core's blocks and requests."""
    for number, core in enumerate(cores):
        suffix = f" {number}" if len(cores) > 1 else ""
        yield f"blocks{suffix}", Text(f"{core.num_used:,} of {core.num_blocks:,} used   {LEGEND}")
        yield "", block_map(core.cells)
        if core.requests:
            yield f"answers{suffix}", _requests(core)


def block_map(cells: str) -> Text:
    """Return blocks as a few lines, each character for a stretch of the pool."""
    length = _MAP_WIDTH * _MAP_LINES
    size = max(1, -(-len(cells) // length))
    text = Text()
    for index, begin in enumerate(range(0, len(cells), size)):
        if index and index % _MAP_WIDTH == 0:
            text.append("\n")
        mark, style = _MARKS.get(max(cells[begin : begin + size]), ("?", ""))
        text.append(mark, style)
    return text


def _requests(core: CorePicture) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    for request in core.requests[:_MAX_REQUESTS]:
        table.add_row(Text(f"#{request.name}", style="dim"), request.status, _bar(request), _progress(request))
    left = core.num_requests - min(len(core.requests), _MAX_REQUESTS)
    if left > 0:
        table.add_row("", Text(f"and {left} more", style="dim"))
    return table


def _bar(request: RunningRequest) -> Text:
    """Return the request's tokens as a bar: found in the cache, computed, drawn, and what may still come."""
    whole = max(request.num_prompt + request.max_output, 1)
    computed = min(request.num_computed, request.num_prompt)
    text, drawn_to = Text(), 0
    for tokens, mark, style in (
        (min(request.num_cached, computed), "░", "cyan"),
        (computed, "▓", "blue"),
        (request.num_prompt, "·", "dim"),
        (request.num_prompt + request.num_output, "█", "green"),
        (whole, "·", "dim"),
    ):
        end = round(_BAR_WIDTH * tokens / whole)
        text.append(mark * max(end - drawn_to, 0), style)
        drawn_to = max(end, drawn_to)
    return text


def _progress(request: RunningRequest) -> str:
    if request.num_output == 0:
        # A step ahead, the token that it will draw counts as computed, too.
        return f"{min(request.num_computed, request.num_prompt):,} of {request.num_prompt:,} prompt tokens"
    return f"{request.num_output:,} of {request.max_output:,} tokens"
