"""Hosts come, say what they are, fall silent and come back; what ran there is known to be dead each time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pagewire.engine_core.hosts.host_registry import HostRegistry, Route
from pagewire.engine_core.hosts.remote_process import RemoteProcess
from pagewire.ipc.hosts import SILENCE_LIMIT_S, HostBeat, HostHello, HostRefused, HostWelcome, RankEnded, WhoAreYou
from pagewire.version import __version__

HELLO = HostHello(
    version=__version__, index=1, num_hosts=2, name="b", address="10.0.0.2", model_path="/m", model_fingerprint="f",
    num_cpus=2, num_gpus=0, free_port=5000,
)  # fmt: skip
ROUTE, OTHER_ROUTE = Route(b"1"), Route(b"2")


@pytest.fixture
def registry() -> HostRegistry:
    return HostRegistry(range(1, 2), num_hosts=2, model_fingerprint="f")


def process(registry: HostRegistry) -> RemoteProcess:
    """An executor that was started on host 1."""
    started = RemoteProcess("executor 1 on b", 1, 1, lambda order: None)
    registry.add_process(1, 1, 1, started)
    return started


def test_host_that_says_hello_is_there(registry: HostRegistry) -> None:
    assert registry.missing == [1]
    assert registry.take(ROUTE, HELLO, 0.0) == HostWelcome()
    assert registry.missing == []
    assert registry.take(ROUTE, HostBeat(), 0.5) == HostBeat()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": "0.0.0"}, "pagewire 0.0.0.*same version on all hosts"),
        ({"num_hosts": 3}, "--nnodes 3, and host 0 2"),
        ({"index": 2}, "--node-rank 2 must be from 1 to 1"),
        ({"model_fingerprint": "g"}, "model at /m is another one"),
    ],
)
def test_host_that_does_not_fit_is_told_why(registry: HostRegistry, change: dict[str, Any], text: str) -> None:
    answer = registry.take(ROUTE, msgspec.structs.replace(HELLO, **change), 0.0)
    assert isinstance(answer, HostRefused)
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(answer.error.message)
    assert registry.missing == [1]


def test_end_of_an_executor_is_known_with_its_exit_code(registry: HostRegistry) -> None:
    registry.take(ROUTE, HELLO, 0.0)
    executor = process(registry)
    assert executor.wait(0.0) is None
    assert registry.take(ROUTE, RankEnded(executor_epoch=1, rank=1, exit_code=-9, free_port=5001), 1.0) is None
    assert executor.wait(0.0) == -9
    assert executor.describe_end() == "was killed by signal 9 (out of memory?)"
    assert registry.hosts[1].hello.free_port == 5001  # the next ranks meet elsewhere


def test_silent_host_is_lost_with_all_that_ran_there(registry: HostRegistry) -> None:
    registry.take(ROUTE, HELLO, 0.0)
    executor = process(registry)
    for tenths in range(5, 5 + int(SILENCE_LIMIT_S * 10), 5):
        registry.expire(tenths / 10)
    assert registry.missing == []
    registry.expire(SILENCE_LIMIT_S + 0.5)
    assert registry.missing == [1]
    assert executor.exit_code == -9
    assert executor.describe_end() == "was lost with host 1 (b)"
    assert registry.take(ROUTE, HostBeat(), 4.0) == WhoAreYou()
    assert registry.take(OTHER_ROUTE, HELLO, 4.1) == HostWelcome()


def test_core_that_was_stopped_itself_blames_no_host(registry: HostRegistry) -> None:
    registry.take(ROUTE, HELLO, 0.0)
    registry.expire(0.5)
    registry.expire(100.0)
    assert registry.missing == []


def test_agent_that_was_started_anew_takes_the_place_of_the_last_one(registry: HostRegistry) -> None:
    registry.take(ROUTE, HELLO, 0.0)
    executor = process(registry)
    assert registry.take(OTHER_ROUTE, HELLO, 1.0) == HostWelcome()
    assert executor.exit_code == -9


def test_second_host_of_the_same_number_waits_until_the_first_is_gone(registry: HostRegistry) -> None:
    registry.take(ROUTE, HELLO, 0.0)
    assert registry.take(OTHER_ROUTE, msgspec.structs.replace(HELLO, name="c"), 1.0) is None
    assert registry.hosts[1].hello.name == "b"


def test_executor_for_a_host_that_was_just_lost_has_ended(registry: HostRegistry) -> None:
    executor = process(registry)
    assert executor.describe_end() == "was lost with host 1"
