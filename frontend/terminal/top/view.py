"""One frame of the view: what two looks at a server say, as tables and bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .engine_view import engine_rows
from .engine_watch import CorePicture
from .samples import Rates, Sample

_SPARKS = "▁▂▃▄▅▆▇█"
_BAR_WIDTH = 40
_ALARMING = 0.95


@dataclass(frozen=True, slots=True)
class Frame:
    """What is drawn.

    Attributes:
        url: of the server.
        sample: the last look.
        rates: since the one before.
        lately: over more looks, for what a single one sees little of.
        history: output tokens a second, the latest last.
        cores: the engine's own picture, where the server shows one.
        fault: why there is no newer look, if there is none.
    """

    url: str
    sample: Sample
    rates: Rates
    lately: Rates
    history: Sequence[float]
    cores: Sequence[CorePicture] = ()
    fault: str | None = None


def draw(frame: Frame) -> RenderableType:
    """Return the frame for a terminal of any width."""
    parts: list[RenderableType] = [_requests(frame), _cache(frame), _throughput(frame), _latencies(frame)]
    if frame.cores:
        table = _grid()
        for name, drawn in engine_rows(frame.cores):
            table.add_row(name, drawn)
        parts.append(table)
    if frame.fault is not None:
        parts.append(Text(frame.fault, style="bold red"))
    title = Text(f"{frame.sample.model or 'pagewire'} at {frame.url}", style="bold")
    return Panel(Group(*parts), title=title, title_align="left", subtitle="q quits", subtitle_align="right")


def spark(values: Sequence[float]) -> str:
    """Return values as a line of small bars, the highest of them full."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return _SPARKS[0] * len(values)
    return "".join(_SPARKS[min(int(value / highest * len(_SPARKS)), len(_SPARKS) - 1)] for value in values)


def _requests(frame: Frame) -> RenderableType:
    values = frame.sample.values
    table = _grid()
    running, waiting = _value(values.get("num_requests_running")), _value(values.get("num_requests_waiting"))
    table.add_row("requests", f"{running} running, {waiting} waiting, {frame.rates.finished_s:.1f}/s finished")
    ends = [f"{int(count)} {name.partition(':')[2]}" for name, count in sorted(values.items())
            if name.startswith("request_success:") and count]  # fmt: skip
    table.add_row("ended", ", ".join(ends) or "none yet")
    troubles = [f"{int(values.get('num_preemptions', 0))} preemptions"]
    restarts = {name.partition(":")[2]: count for name, count in values.items() if name.startswith("restarts:")}
    troubles += [f"{int(count)} restarts of {process}s" for process, count in restarts.items()]
    alarmed = any(restarts.values())
    table.add_row("troubles", Text(", ".join(troubles), style="yellow" if alarmed else ""))
    return table


def _cache(frame: Frame) -> RenderableType:
    usage = max(frame.sample.shares.values(), default=0.0)
    table = _grid()
    style = "red" if usage >= _ALARMING else "green"
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=1.0, completed=usage, width=_BAR_WIDTH, complete_style=style), f"{usage:.1%}")
    table.add_row("KV cache", line)
    table.add_row("prefix hits", _share(frame.lately.cache_hits, "of the prompts' tokens"))
    if "spec_decode_num_draft_tokens" in frame.sample.values:
        table.add_row("drafts", _share(frame.lately.accepted, "of the guesses accepted"))
    return table


def _throughput(frame: Frame) -> RenderableType:
    table = _grid()
    rates = frame.rates
    table.add_row("tokens/s", f"{rates.output_tokens_s:,.0f} output, {rates.prompt_tokens_s:,.0f} prompt")
    table.add_row("", Text(spark(frame.history), style="cyan"))
    return table


def _latencies(frame: Frame) -> RenderableType:
    table = _grid()
    for title, both in (("TTFT", frame.lately.ttft_s), ("ITL", frame.lately.itl_s), ("whole", frame.lately.e2e_s)):
        text = "-" if both is None else f"median {_duration(both[0])}, 99% within {_duration(both[1])}"
        table.add_row(title, text)
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=11, style="dim")
    table.add_column()
    return table


def _value(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _share(value: float | None, of_what: str) -> str:
    return "-" if value is None else f"{value:.1%} {of_what}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
