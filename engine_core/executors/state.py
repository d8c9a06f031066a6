"""Where a group of executors is in its life."""

from __future__ import annotations

import enum


class ExecutorState(enum.Enum):
    """What the core's executors do now."""

    PLACING = enum.auto()  # nothing runs: waits for the hosts that executors run on
    LOADING = enum.auto()
    SERVING = enum.auto()
    ENDING = enum.auto()  # told to stop, or killed; not every process is dead yet
    AT_REST = enum.auto()  # nothing runs, until it is told to
