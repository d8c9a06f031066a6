"""Orders come in turn, masks by step, whatever came first."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import zmq

from pagewire.gpu_executor.core_inbox import CoreInbox, Order, Stopped
from pagewire.ipc.channels import PairChannel, open_socket
from pagewire.ipc.codec import from_executor, to_executor
from pagewire.ipc.steps import ExecuteStep, RowMasks, SamplingMasks, Shutdown


@pytest.fixture
def ends() -> Iterator[tuple[CoreInbox, PairChannel]]:
    context = zmq.Context()
    sockets = [open_socket(context, zmq.PAIR) for _ in range(2)]
    sockets[0].bind("inproc://executor")
    sockets[1].connect("inproc://executor")
    for socket in sockets:
        socket.setsockopt(zmq.RCVTIMEO, 10_000)
    yield CoreInbox(PairChannel(sockets[0], to_executor), 1), PairChannel(sockets[1], from_executor)
    context.destroy()


def recv(inbox: CoreInbox) -> Order:
    """Wait for the next order, whatever masks come before it."""
    while (order := inbox.try_recv()) is None:
        assert inbox.wait(10_000), "no message comes"
    return order


def step(step_id: int) -> ExecuteStep:
    return ExecuteStep(executor_epoch=1, step_id=step_id)


def masks(step_id: int, epoch: int = 1) -> SamplingMasks:
    return SamplingMasks(executor_epoch=epoch, step_id=step_id, rows=[RowMasks(7, bytes([step_id]))])


def test_masks_are_found_before_and_behind_their_step_and_the_next_one(ends):
    inbox, core = ends
    for message in (masks(1), step(1), step(2), masks(2), step(3)):
        core.send(message)
    assert recv(inbox).step_id == 1
    assert inbox.wait_for_masks(1) == {7: b"\x01"}
    assert recv(inbox).step_id == 2
    assert inbox.wait_for_masks(2) == {7: b"\x02"}
    assert recv(inbox).step_id == 3
    assert inbox.try_recv() is None
    assert inbox.try_masks(3) is None
    core.send(masks(3))
    assert inbox.wait_for_masks(3) == {7: b"\x03"}


def test_masks_of_another_executor_are_dropped(ends):
    inbox, core = ends
    core.send(masks(1, epoch=2))
    core.send(masks(1))
    assert inbox.wait_for_masks(1) == {7: b"\x01"}


def test_masks_that_nobody_asks_for_do_not_add_up(ends):
    inbox, core = ends
    for step_id in range(1, 30):
        core.send(masks(step_id))
        core.send(step(step_id))
    for _ in range(1, 30):
        recv(inbox)
    assert len(inbox._masks) <= 1


def test_who_waits_for_masks_hears_of_the_shutdown_and_so_does_who_asks_next(ends):
    inbox, core = ends
    core.send(step(2))
    core.send(Shutdown())
    with pytest.raises(Stopped):
        inbox.wait_for_masks(1)
    assert isinstance(recv(inbox), Shutdown)


def test_a_wait_ends_with_a_message_a_descriptor_or_its_time(ends):
    inbox, core = ends
    read_fd, write_fd = os.pipe()
    try:
        assert not inbox.wait(0, fd=read_fd)
        os.write(write_fd, b"x")
        assert inbox.wait(10_000, fd=read_fd)
        os.read(read_fd, 1)
        core.send(step(1))
        assert inbox.wait(10_000, fd=read_fd)
        assert recv(inbox) == step(1)
    finally:
        os.close(read_fd)
        os.close(write_fd)
