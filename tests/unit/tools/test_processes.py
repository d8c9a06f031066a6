"""Processes as /proc shows them."""

from __future__ import annotations

import os
import subprocess
import sys

from tools.processes import processes_below, processes_with, read_process, resident_bytes


def test_child_is_found_by_its_parent_and_its_environment_and_is_gone_after_its_end() -> None:
    command = [sys.executable, "-P", "-m", "timeit", "-n", "1", "-r", "1", "input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "FOUND_BY": "this test"})
    try:
        (found,) = [process for process in processes_below(os.getpid()) if process.pid == child.pid]
        assert found.parent == os.getpid()
        assert found.is_same_and_running
        assert [process.pid for process in processes_with("FOUND_BY=this test")] == [child.pid]
        assert found.module == "timeit"
        assert resident_bytes(child.pid) > 0
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not found.is_same_and_running, "it is dead, if not reaped"
    finally:
        child.kill()
        child.communicate()
    assert read_process(child.pid) is None
    assert processes_with("FOUND_BY=this test") == []


def test_number_of_no_process_is_none() -> None:
    assert read_process(2**22 + 1) is None
