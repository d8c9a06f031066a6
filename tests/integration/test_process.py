"""Children start by module name, are watched by a descriptor, stop in order, and never outlive their parent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagewire.ipc.process import ChildProcess
from tests.support.children import ROOT, is_alive, make_importable, wait_until

PARENT = """
import os, signal, sys
from pathlib import Path
from pagewire.ipc.process import ChildProcess
child = ChildProcess("tests.support.idle_child", name=sys.argv[1], address="", runtime_dir=Path("/"), log_level="info")
print(child.pid, flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    make_importable(monkeypatch)


def start_child(name: str = "child") -> ChildProcess:
    return ChildProcess("tests.support.idle_child", name=name, address="", runtime_dir=Path("/"), log_level="info")


@pytest.fixture(params=["parent"])
def parent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, request.param],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_ordered_stop_is_obeyed_without_a_kill() -> None:
    child = start_child()
    assert child.exit_code is None
    assert child.stop(timeout_s=10) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_terminals_signal_does_not_end_a_child_that_has_not_begun(number: signal.Signals) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    child = start_child()
    os.kill(child.pid, number)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before  # the parent's own are as they were
    assert child.stop(timeout_s=10) == 0


def test_fork_that_holds_the_pipe_does_not_hold_up_an_ordered_stop() -> None:
    child = start_child()
    assert child._process.stdin is not None
    held_by_a_fork = os.dup(child._process.stdin.fileno())
    try:
        assert child.stop(timeout_s=10) == 0
    finally:
        os.close(held_by_a_fork)


def test_terminal_signals_are_ignored(parent: subprocess.Popen[str]) -> None:
    child = start_child()
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())  # has read its bootstrap once its own child is reported
    int(parent.stdout.readline())
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    assert is_alive(pid)
    assert child.stop(timeout_s=10) == 0


def test_death_is_readable_on_the_notice_descriptor() -> None:
    child = start_child("exit 3")
    readable, _, _ = select.select([child.death_fd], [], [], 10)
    assert readable == [child.death_fd]
    assert child.wait(timeout_s=10) == 3
    child.close()


def test_killed_parent_leaves_no_descendant(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline()), int(parent.stdout.readline())]
    assert all(is_alive(pid) for pid in pids)
    parent.kill()
    parent.wait()
    for pid in pids:
        wait_until(lambda pid=pid: not is_alive(pid), 5, f"the end of process {pid}")


@pytest.mark.parametrize("parent", ["poller"], indirect=True)
def test_stopped_child_goes_on_when_its_parent_ends(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    pid = next(int(line) for line in iter(parent.stdout.readline, "") if line != "polls\n")
    if parent.stdout.readline() != "polls\n":
        pytest.skip("the kernel's parent-death signal is not there")
    os.kill(pid, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_alive(pid), 5, f"the end of process {pid}")


def test_stopped_child_is_killed_after_the_timeout() -> None:
    child = start_child()
    os.kill(child.pid, signal.SIGSTOP)
    assert child.stop(timeout_s=0.2) == -signal.SIGKILL


def test_module_started_by_hand_says_what_to_run_instead() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pagewire.engine_core"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pagewire serve" in done.stderr


def test_child_does_not_inherit_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "PAGEWIRE_API_KEY",
        "VLLM_API_KEY",
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "other_api_key",
    ]
    for name in names:
        monkeypatch.setenv(name, f"secret of {name}")
    monkeypatch.setenv("PAGEWIRE_TEST", "no secret")
    child = start_child()
    place = Path(f"/proc/{child.pid}/environ")
    try:
        wait_until(lambda: place.read_bytes() != b"", 10, "the child's program")  # until then it has no environment
        environment = place.read_bytes()
    finally:
        child.kill()
    assert b"secret of" not in environment
    assert b"PAGEWIRE_TEST=no secret" in environment
