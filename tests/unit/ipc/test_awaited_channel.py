"""The core listens for an executor of another host: what it says meanwhile waits, and only those with keys come in."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from pagewire.ipc.awaited_channel import AwaitedChannel, open_core_channel
from pagewire.ipc.channels import PairChannel
from pagewire.ipc.cluster_keys import ClusterKeys, make_cluster_keys
from pagewire.ipc.curve import ClientKeys
from pagewire.ipc.steps import ExecutorBusy, FromExecutor, Shutdown, ToExecutor
from pagewire.ipc.zap import Doorkeeper

WAIT_MS = 10_000
BUSY = ExecutorBusy(executor_epoch=1, reason="loading", limit_s=1.0)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def keys(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[ClusterKeys]:
    """Those of a core whose door is kept."""
    keys = make_cluster_keys()
    doorkeeper = Doorkeeper(context, keys.for_core().clients)
    is_over = threading.Event()

    def keep() -> None:
        while not is_over.is_set():
            if doorkeeper.socket.poll(20):
                doorkeeper.answer(time.monotonic())
        doorkeeper.close()

    thread = threading.Thread(target=keep)
    thread.start()
    yield keys
    is_over.set()
    thread.join()


def join(
    context: zmq.Context[zmq.Socket[bytes]], core: AwaitedChannel, keys: ClientKeys | None
) -> PairChannel[ToExecutor]:
    return open_core_channel(context, f"tcp://127.0.0.1:{core.port}", keys)


def received(core: AwaitedChannel) -> FromExecutor:
    while (message := core.try_recv()) is None:
        assert core.socket.poll(WAIT_MS), "the executor says nothing"
    return message


def test_what_was_said_before_the_executor_came_reaches_it_first(context, keys: ClusterKeys) -> None:
    core = AwaitedChannel(context, keys.for_core(), "127.0.0.1")
    core.send(Shutdown())  # nobody is there: it neither blocks nor is lost
    executor = join(context, core, keys.for_host())
    assert core.socket.poll(WAIT_MS)
    assert core.try_recv() is None  # it says only that it is here
    assert executor.socket.poll(WAIT_MS)
    assert executor.recv() == Shutdown()
    executor.send(BUSY)
    assert received(core) == BUSY
    executor.close()
    core.close()


def test_executor_with_other_keys_is_not_let_in(context, keys: ClusterKeys) -> None:
    core = AwaitedChannel(context, keys.for_core(), "127.0.0.1")
    core.send(Shutdown())
    strangers = make_cluster_keys().for_host()
    executor = join(context, core, ClientKeys(own=strangers.own, server=keys.for_core().own.public))
    assert not executor.socket.poll(200)
    assert not core.socket.poll(0)
    executor.close()
    core.close()


def test_on_one_host_the_executor_waits_for_its_core(context, tmp_path) -> None:
    executor = open_core_channel(context, f"ipc://{tmp_path}/e.sock", None)
    assert executor.socket.getsockopt(zmq.TYPE) == zmq.PAIR
    executor.close()
