"""The picture of a sweep: what each server gives in throughput, and what that costs its users in latency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pagewire.ipc.errors import ConfigError, MachineError

from .comparison import ComparedRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SUFFIXES = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Find out before a long run whether its picture can be drawn.

    Raises:
        ConfigError: the file's name is none of a picture.
        MachineError: matplotlib is missing.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"--plot {path} must end in {', '.join(_SUFFIXES)}.")
    try:
        import matplotlib.figure  # noqa: F401 - whether it can be imported is the question
    except ImportError as exc:
        raise MachineError("--plot needs matplotlib: pip install 'pagewire[plot]'.") from exc


def save_plot(rows: Sequence[ComparedRow], path: Path, *, title: str) -> None:
    """Draw a line a server: throughput to the right, latency upwards, a point a load.

    Args:
        rows: of `compare`; the loads of a server in ascending order.
        path: checked by `check_plot`.
        title: stands above the picture.

    Raises:
        MachineError: the file can't be written.
    """
    # Not pyplot: it picks a window system and keeps every figure alive.
    from matplotlib.figure import Figure

    picture = Figure(figsize=(11, 4.8), layout="constrained")
    picture.suptitle(title)
    first_token, between = picture.subplots(1, 2)
    _draw(first_token, rows, "time to first token, p50 (ms)", [row.ttft_p50_ms for row in rows])
    _draw(between, rows, "inter-token latency, p50 (ms)", [row.itl_p50_ms for row in rows])
    first_token.legend()
    try:
        picture.savefig(path, dpi=150)
    except OSError as exc:
        raise MachineError(f"{path} can't be written: {exc.strerror}.") from exc


def _draw(axes: Axes, rows: Sequence[ComparedRow], what: str, values_ms: Sequence[float]) -> None:
    for name in dict.fromkeys(row.target.name for row in rows):
        points = [(row, value) for row, value in zip(rows, values_ms, strict=True) if row.target.name == name]
        throughputs = [row.output_throughput for row, _ in points]
        axes.plot(throughputs, [value for _, value in points], marker="o", label=name)
        for (row, value), throughput in zip(points, throughputs, strict=True):
            axes.annotate(row.point.label, (throughput, value), textcoords="offset points", xytext=(4, 4), fontsize=7)
    axes.set_xlabel("output tokens/s")
    axes.set_ylabel(what)
    axes.margins(0.12)  # room for the labels
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
