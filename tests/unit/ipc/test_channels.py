"""Sockets carry typed messages, never block the core, and name what can't be delivered or read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from pagewire.ipc.channels import (
    CLIENT_HIGH_WATER_MARK,
    ClientId,
    ClientRouter,
    CoreConnection,
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


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)  # closes what is still open


@pytest.fixture
def router(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> Iterator[ClientRouter]:
    router = ClientRouter(context, f"ipc://{tmp_path}/core")
    yield router
    router.close()


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


async def test_client_and_router_understand_each_other(router: ClientRouter, tmp_path: Path):
    connection = CoreConnection(f"ipc://{tmp_path}/core")
    connection.send(HELLO)
    client, message = receive(router)
    assert message == HELLO
    router.send(client, StepOutputs(accepted=[3]))
    assert await connection.recv() == StepOutputs(accepted=[3])
    connection.close()
    connection.close()


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
    router = ClientRouter(context, f"ipc://{tmp_path}/private")
    path = tmp_path / "private"
    assert path.stat().st_mode & 0o077 == 0
    router.close()
    context.term()
    assert not path.exists()


async def test_messages_that_came_together_are_handed_over_in_one_call(router: ClientRouter, tmp_path: Path):
    connection = CoreConnection(f"ipc://{tmp_path}/core")
    connection.send(HELLO)
    client, _ = receive(router)
    calls: list[list[object]] = []
    all_came = asyncio.Event()

    def take(messages: list[object]) -> None:
        calls.append(messages)
        if sum(map(len, calls)) == 200:
            all_came.set()

    for index in range(200):
        router.send(client, StepOutputs(accepted=[index]))
    connection.receive_with(take, pytest.fail)
    async with asyncio.timeout(10):
        await all_came.wait()
    assert [message.accepted for messages in calls for message in messages] == [[index] for index in range(200)]
    assert max(map(len, calls)) <= 64, "the event loop has others to serve"
    connection.close()


@pytest.mark.parametrize("fails", ["message", "receiver"])
async def test_what_ends_the_receiving_is_told_after_what_came_before_it(router: ClientRouter, tmp_path: Path, fails):
    connection = CoreConnection(f"ipc://{tmp_path}/core")
    connection.send(HELLO)
    client, _ = receive(router)
    taken: list[object] = []
    failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def take(messages: list[object]) -> None:
        taken.extend(messages)
        if fails == "receiver":
            raise ValueError("planted")

    connection.receive_with(take, failure.set_result)
    router.send(client, StepOutputs(accepted=[1]))
    if fails == "message":
        router.socket.send_multipart([client, b"\xc1"])
    error = await asyncio.wait_for(failure, 10)
    assert isinstance(error, ProtocolError if fails == "message" else ValueError)
    assert taken == [StepOutputs(accepted=[1])]
    connection.close()
