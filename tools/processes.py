"""The processes below one, read out of /proc (Linux): who they are, whether they run, what memory they hold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process as it was when it was looked at.

    Attributes:
        pid: its number, which the kernel gives to another one later.
        started: clock ticks from the machine's start to its own; with the pid it names one process for good.
        parent: the pid of its parent.
        state: the kernel's letter: R and S run, T is stopped, Z is dead and not yet reaped.
        module: what `python -m` runs in it; empty for anything else.
    """

    pid: int
    started: int
    parent: int
    state: str
    module: str

    @property
    def is_same_and_running(self) -> bool:
        """Whether this very process still exists and is not dead."""
        now = read_process(self.pid)
        return now is not None and now.started == self.started and now.state not in "ZX"


def read_process(pid: int) -> Process | None:
    """Return a process, or None if there is none of that number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    module = arguments[arguments.index(b"-m") + 1].decode() if b"-m" in arguments[:-1] else ""
    return Process(pid=pid, started=int(fields[19]), parent=int(fields[1]), state=fields[0], module=module)


def processes_with(variable: str) -> list[Process]:
    """Return every process, dead ones left out, that was started with NAME=VALUE in its environment."""
    wanted = variable.encode()
    return [process for process in _all_processes() if process.state not in "ZX" and wanted in _environment(process)]


def processes_below(pid: int) -> list[Process]:
    """Return the children of a process, theirs, and so on."""
    children: dict[int, list[Process]] = {}
    for process in _all_processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    parents = [pid]
    while parents:
        below = children.get(parents.pop(), [])
        found += below
        parents += [process.pid for process in below]
    return found


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has in the machine's own, shared files included.

    Raises:
        FileNotFoundError: there is no such process.
    """
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _all_processes() -> list[Process]:
    read = (read_process(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [process for process in read if process is not None]


def _environment(process: Process) -> list[bytes]:
    try:
        return Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended, or is another user's
        return []
