"""Modules run as child processes by the tests need the tree on their path: `python -P` leaves the directory out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let children import `tests.support.*`."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def children_of(pid: int) -> list[int]:
    """The direct children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found


def descendants_of(pid: int) -> list[int]:
    """All processes below one."""
    direct = children_of(pid)
    return direct + [below for child in direct for below in descendants_of(child)]


def wait_until(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll a condition of another process, which sends this one no event.

    Raises:
        AssertionError: it does not hold within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s} s"
        os.sched_yield()
        time.sleep(0.01)
