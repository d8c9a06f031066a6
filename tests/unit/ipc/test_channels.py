"""Sockets carry typed messages, never block the core, and name what can't be delivered or read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import zmq

from pagewire.ipc.channels import (
    CLIENT_HIGH_WATER_MARK,
    ClientId,
    ClientRouter,
    GoneClient,
    SlowClient,
    bind_core,
    connect_executor,
)
from pagewire.ipc.codec import PROTOCOL_VERSION, encode
from pagewire.ipc.errors import MachineError, ProtocolError
from pagewire.ipc.outputs import StepOutputs
from pagewire.ipc.requests import Hello, Message, Ping
from pagewire.ipc.steps import ExecuteStep, Shutdown, StepResult

HELLO = Hello(protocol_version=PROTOCOL_VERSION)
WAIT_MS = 10_000


def dealer(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(f"ipc://{tmp_path}/core")
    return socket


def receive(router: ClientRouter) -> tuple[ClientId, object]:
    assert router.socket.poll(WAIT_MS), "nothing came"
    received = router.try_recv()
    assert received is not None
    return received


def send_until_refused(router: ClientRouter, client: ClientId, message: Message) -> None:
    """Send on and on: a close travels meanwhile, a queue fills."""
    for _ in range(100 * CLIENT_HIGH_WATER_MARK):
        router.send(client, message)


def send_until_gone(router: ClientRouter, client: ClientId) -> None:
    """The same for a client whose close may take its time, while the queue fills."""
    for _ in range(WAIT_MS):
        with contextlib.suppress(SlowClient):
            send_until_refused(router, client, Ping())
        router.socket.poll(1)


def test_pair_carries_steps_one_way_and_results_the_other(context, tmp_path: Path):
    address = f"ipc://{tmp_path}/executor"
    core = connect_executor(context, address)
    core.send(Shutdown())  # queued until the executor is up
    executor = bind_core(context, address)
    assert isinstance(executor.recv(), Shutdown)
    core.send(ExecuteStep(executor_epoch=1, step_id=7))
    assert executor.recv() == ExecuteStep(executor_epoch=1, step_id=7)
    assert core.try_recv() is None
    executor.send(StepResult(executor_epoch=1, step_id=7))
    assert core.recv() == StepResult(executor_epoch=1, step_id=7)
    core.close()
    executor.close()


@pytest.mark.parametrize("frames", [[b"\xff\x00"], [b""], [encode(HELLO), b"more"], [encode(Shutdown())]])
def test_what_is_no_message_is_returned_as_an_error(router, context, tmp_path: Path, frames: list[bytes]):
    client = dealer(context, tmp_path)
    client.send_multipart(frames)
    assert isinstance(receive(router)[1], ProtocolError)
    client.send(encode(HELLO))
    assert receive(router)[1] == HELLO, "the next message is read as ever"
    client.close()


def test_client_that_never_came_or_left_is_gone(router: ClientRouter, context, tmp_path: Path):
    with pytest.raises(GoneClient):
        router.send(ClientId(b"nobody"), Ping())
    client = dealer(context, tmp_path)
    client.send(encode(HELLO))
    identity, _ = receive(router)
    client.close()
    with pytest.raises(GoneClient):
        send_until_gone(router, identity)


def test_client_that_does_not_read_is_slow_and_blocks_nobody(router: ClientRouter, context, tmp_path: Path):
    client = dealer(context, tmp_path)
    client.setsockopt(zmq.RCVHWM, 1)
    client.send(encode(HELLO))
    identity, _ = receive(router)
    news = StepOutputs(accepted=list(range(1000)))
    with pytest.raises(SlowClient, match=str(CLIENT_HIGH_WATER_MARK)):
        send_until_refused(router, identity, news)
    client.close()


def test_address_that_cannot_be_bound_is_the_machines_fault(context, tmp_path: Path):
    with pytest.raises(MachineError, match="missing"):
        ClientRouter(context, f"ipc://{tmp_path}/missing/core")


def test_socket_file_is_for_its_user_alone_and_goes_with_the_socket(context, tmp_path: Path):
    umask = os.umask(0o022)
    os.umask(umask)
    router = ClientRouter(context, f"ipc://{tmp_path}/private")
    path = tmp_path / "private"
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "other").touch()
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o666 & ~umask, "other files are made as ever"
    router.close()
    context.term()
    assert not path.exists()
