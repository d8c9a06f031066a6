"""Ray's client is kept running: one that was killed is replaced, one that ended by itself is the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pagewire.engine_core.hosts.placement_helper import RayHelper
from pagewire.ipc.cluster_keys import make_cluster_keys
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import MachineError
from pagewire.ipc.process import ChildProcess
from tests.support.children import is_alive, make_importable


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayHelper]:
    make_importable(monkeypatch)
    helper = RayHelper(EngineConfig(), make_cluster_keys(), core_epoch=1, module="tests.support.idle_child")
    yield helper
    helper.stop()


def process_of(helper: RayHelper) -> ChildProcess:
    assert helper._process is not None
    return helper._process


def test_client_that_was_killed_is_started_again(helper: RayHelper) -> None:
    helper.keep_running(5000)
    first = process_of(helper)
    helper.keep_running(5000)
    assert process_of(helper) is first
    first.begin_kill()
    first.wait(10)
    helper.keep_running(5000)
    second = process_of(helper).pid
    assert second != first.pid
    helper.stop()
    helper.stop()
    assert not is_alive(second)


def test_client_that_ended_by_itself_is_not(helper: RayHelper) -> None:
    helper._module = "no.such.module"
    helper.keep_running(5000)
    assert process_of(helper).wait(10) == 1
    with pytest.raises(MachineError, match="Ray's client ended with exit code 1"):
        helper.keep_running(5000)
