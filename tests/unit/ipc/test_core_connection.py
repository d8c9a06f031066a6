"""A client's connection hands over what came, in order and once, and tells when there is nothing more to come."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import zmq

from pagewire.ipc.channels import ClientId, ClientRouter
from pagewire.ipc.codec import PROTOCOL_VERSION
from pagewire.ipc.core_connection import CoreConnection, LostConnection
from pagewire.ipc.errors import ProtocolError
from pagewire.ipc.outputs import StepOutputs
from pagewire.ipc.requests import Hello

HELLO = Hello(protocol_version=PROTOCOL_VERSION)
WAIT_MS = 10_000


def receive(router: ClientRouter) -> tuple[ClientId, object]:
    assert router.socket.poll(WAIT_MS), "nothing came"
    received = router.try_recv()
    assert received is not None
    return received


async def test_client_and_router_understand_each_other(router: ClientRouter, tmp_path: Path):
    connection = CoreConnection(f"ipc://{tmp_path}/core")
    connection.send(HELLO)
    client, message = receive(router)
    assert message == HELLO
    router.send(client, StepOutputs(accepted=[3]))
    assert await connection.recv() == StepOutputs(accepted=[3])
    connection.close()
    connection.close()


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


async def test_a_break_is_told_after_all_that_came_before_it(router: ClientRouter, tmp_path: Path):
    connection = CoreConnection(f"ipc://{tmp_path}/core")
    connection.send(HELLO)
    client, _ = receive(router)
    for index in range(100):
        router.send(client, StepOutputs(accepted=[index]))
    router.socket.setsockopt(zmq.LINGER, WAIT_MS)
    router.close()
    taken: list[StepOutputs] = []
    failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    connection.receive_with(taken.extend, failure.set_result)
    assert isinstance(await asyncio.wait_for(failure, 10), LostConnection)
    assert [message.accepted for message in taken] == [[index] for index in range(100)]
    connection.close()


async def test_waiting_for_a_message_ends_with_the_connection(router: ClientRouter, tmp_path: Path):
    connection = CoreConnection(f"ipc://{tmp_path}/core")
    connection.send(HELLO)
    receive(router)
    assert not connection.has_unsent
    router.close()
    with pytest.raises(LostConnection):
        await asyncio.wait_for(connection.recv(), 10)
    assert connection.is_established
    connection.close()


async def test_an_address_without_a_listener_is_told_at_once(tmp_path: Path):
    connection = CoreConnection(f"ipc://{tmp_path}/nobody")
    with pytest.raises(LostConnection):
        await asyncio.wait_for(connection.recv(), 10)
    assert not connection.is_established
    connection.close()


async def test_a_broken_connection_never_reaches_the_next_listener(router: ClientRouter, context, tmp_path: Path):
    connection = CoreConnection(f"ipc://{tmp_path}/core")
    connection.send(HELLO)
    receive(router)
    router.close()
    with pytest.raises(LostConnection):
        await asyncio.wait_for(connection.recv(), 10)
    following = ClientRouter(context, f"ipc://{tmp_path}/core")
    connection.send(HELLO)
    assert not following.socket.poll(300)
    other = CoreConnection(f"ipc://{tmp_path}/core")
    other.send(HELLO)
    assert receive(following)[1] == HELLO
    for each in (connection, other, following):
        each.close()
