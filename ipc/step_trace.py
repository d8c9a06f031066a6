"""A timeline of steps that chrome://tracing and https://ui.perfetto.dev show: who did what when, in every process.

The file is a JSON array of events in the Trace Event Format. The supervisor begins and ends it; each process that takes
steps collects its own events in memory and appends them in one write, when enough steps are done or when it stops. All
clocks are CLOCK_MONOTONIC, which processes of one machine share, so the processes' events line up.

Source: "Trace Event Format", the Chromium project.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from .errors import ConfigError

logger = logging.getLogger(__name__)

NUM_STEPS = 1000
"""A timeline holds the first steps: about 3 MB, in memory until they are done."""

MAIN_TRACK = 1
"""The line of the timeline where a process's calls stand; viewers take 0 for the system's idle thread."""

_encoder = msgspec.json.Encoder()
_Arguments = Mapping[str, object]


class StepTrace:
    """Collects the spans of one process.

    Args:
        path: the file that `begin_trace_file` made.
        process: what the timeline calls this process.
        num_steps: after so many calls of `step_done` the trace is written, and nothing is timed any more.
        clock: nanoseconds, monotonic.
    """

    def __init__(
        self, path: str, process: str, *, num_steps: int = NUM_STEPS, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._path = path
        self._pid = os.getpid()
        self._num_steps_left = num_steps
        self._clock = clock
        self._events = [self._name_event("process_name", MAIN_TRACK, process)]
        self._undo: list[Callable[[], None]] = []
        self._is_open = True

    def at_end(self, action: Callable[[], None]) -> None:
        """Have `action` called when recording ends, as the wrapped methods are given back."""
        self._undo.append(action)

    def wrap(
        self,
        owner: object,
        method: str,
        name: str | None,
        *,
        describe: Callable[..., _Arguments] | None = None,
        then: Callable[..., None] | None = None,
    ) -> None:
        """Have each call of an object's method recorded as a span, until the trace is written.

        Code that is timed so knows nothing of it, and costs nothing where there is no trace.

        Args:
            owner: the object; others of its class are left alone.
            method: the method's name.
            name: of the span; None: there is no span, `then` alone is called.
            describe: makes the span's arguments of (result, *arguments of the call).
            then: called with (start, end, result, *arguments of the call).
        """
        inner = getattr(owner, method)

        def timed(*arguments: Any, **keywords: Any) -> Any:  # Any: whatever the method takes and gives
            start_ns = self._clock()
            result = inner(*arguments, **keywords)
            end_ns = self._clock()
            if name is not None:
                details = {} if describe is None else describe(result, *arguments)
                self.add(name, start_ns, end_ns, details=details)
            if then is not None:
                then(start_ns, end_ns, result, *arguments)
            return result

        before = vars(owner).get(method)
        setattr(owner, method, timed)
        self._undo.append(lambda: delattr(owner, method) if before is None else setattr(owner, method, before))

    def add(
        self, name: str, start_ns: int, end_ns: int, *, track: int = MAIN_TRACK, details: _Arguments | None = None
    ) -> None:
        """Record a span.

        Args:
            name: what was done.
            start_ns: on the trace's clock; `end_ns` alike.
            end_ns: see `start_ns`.
            track: a line of the timeline; the spans of one line must lie within or beside each other.
            details: what the timeline shows of a span that is clicked.
        """
        event: dict[str, object] = {
            "name": name,
            "ph": "X",
            "ts": start_ns / 1000,
            "dur": (end_ns - start_ns) / 1000,
            "pid": self._pid,
            "tid": track,
        }
        self._events.append({**event, "args": details} if details else event)

    def name_track(self, track: int, name: str) -> None:
        """Name a line of the timeline."""
        self._events.append(self._name_event("thread_name", track, name))

    def step_done(self) -> None:
        """Count a step; the last one that the trace holds writes it."""
        self._num_steps_left -= 1
        if self._num_steps_left == 0:
            self.close()

    def close(self) -> None:
        """Write what was collected, and time nothing any more. Closing twice is fine.

        A file that can't be written costs the timeline and not the requests: it is logged.
        """
        if not self._is_open:
            return
        self._is_open = False
        for undo in reversed(self._undo):
            undo()
        _append(self._path, b"".join(_encoder.encode(event) + b",\n" for event in self._events))
        self._events.clear()
        logger.info("timeline of this process's steps written to %s", self._path)

    def _name_event(self, kind: str, track: int, name: str) -> dict[str, object]:
        return {"name": kind, "ph": "M", "pid": self._pid, "tid": track, "args": {"name": name}}


def begin_trace_file(path: str) -> None:
    """Make the file, for the processes to append to.

    Raises:
        ConfigError: it can't be written.
    """
    try:
        Path(path).write_bytes(b"[\n")
    except OSError as exc:
        raise ConfigError(f"--profile-steps {path} can't be written: {exc.strerror}.") from exc


def end_trace_file(path: str) -> None:
    """Close the array, once no process writes any more; viewers take a file without its end as well."""
    supervisor = {"name": "process_name", "ph": "M", "pid": os.getpid(), "args": {"name": "supervisor"}}
    _append(path, _encoder.encode(supervisor) + b"\n]\n")


def _append(path: str, content: bytes) -> None:
    # One write in append mode: what several processes append at once stands one after the other.
    try:
        with Path(path).open("ab", buffering=0) as file:
            while content:
                content = content[file.write(content) :]
    except OSError as exc:
        logger.error("--profile-steps %s can't be written: %s", path, exc.strerror)
