"""Several files at once: the first fault, or Ctrl-C, ends all of them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from pagewire.checkpoint.sources.large_files import run_at_once

_WAITING = """
import threading
from pagewire.checkpoint.sources.large_files import run_at_once
print("begun", flush=True)
run_at_once([threading.Event().wait] * 5, threading.Event())
"""


def test_all_jobs_are_done():
    done: list[int] = []
    run_at_once([lambda number=number: done.append(number) for number in range(9)], threading.Event())
    assert sorted(done) == list(range(9))


def test_a_fault_comes_through_and_stops_the_others():
    stop = threading.Event()

    def fail() -> None:
        raise OSError("no such host")

    with pytest.raises(OSError, match="no such host"):
        run_at_once([stop.wait, fail, stop.wait], stop)
    assert stop.is_set()


def test_ctrl_c_waits_for_no_connection():
    process = subprocess.Popen([sys.executable, "-c", _WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.stderr.read()
    assert process.returncode == -signal.SIGINT
