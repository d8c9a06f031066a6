"""`pagewire bench report`: from result files to a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pagewire.ipc.errors import MachineError

from .config import BenchReportConfig
from .page import report_page
from .runs import Run, read_runs


def run(config: BenchReportConfig, paths: Sequence[Path], say: Callable[[str], None]) -> int:
    """Write the page of some saved runs; return the exit code.

    Raises:
        ConfigError: a file can't be read, or is no result.
        MachineError: the page can't be written.
    """
    save_report(read_runs(paths), Path(config.output), title=config.title)
    say(f"Reported in {config.output}.")
    return 0


def save_report(runs: Sequence[Run], path: Path, *, title: str) -> None:
    """Write the page.

    Raises:
        MachineError: it can't be written.
    """
    try:
        path.write_text(report_page(runs, title=title), encoding="utf-8")
    except OSError as exc:
        raise MachineError(f"{path} can't be written: {exc.strerror}.") from exc
