"""What a stage keeps of what it sends, and for how long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.parallel.share import Share
from pagewire.gpu_executor.parallel.stage_link import StageLink
from pagewire.ipc.errors import RankLost

CPU = torch.device("cpu")


class FakeTransfer:
    def __init__(self) -> None:
        self.was_waited_for = False

    def wait(self) -> bool:
        self.was_waited_for = True
        return True


class FakeGroup:
    """Begins transfers; a receiver gets threes."""

    def __init__(self) -> None:
        self.sent: list[FakeTransfer] = []
        self.targets: list[int] = []
        self.error: RuntimeError | None = None

    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return 3

    def allgather(self, outputs: Sequence[list[Tensor]], inputs: Sequence[Tensor]) -> FakeTransfer:
        raise NotImplementedError

    def allreduce(self, tensors: Sequence[Tensor]) -> FakeTransfer:
        raise NotImplementedError

    def send(self, tensors: Sequence[Tensor], rank: int, tag: int) -> FakeTransfer:
        if self.error is not None:
            raise self.error
        self.targets.append(rank)
        self.sent.append(FakeTransfer())
        return self.sent[-1]

    def recv(self, tensors: Sequence[Tensor], rank: int, tag: int) -> FakeTransfer:
        if self.error is not None:
            raise self.error
        assert rank == 0
        tensors[0].fill_(3)
        return FakeTransfer()


def link_over(group: FakeGroup) -> StageLink:
    return StageLink(group, Share(1, 3), hidden_size=2, dtype=torch.float16, device=CPU)


def test_sending_waits_only_for_what_is_older_than_the_steps_in_flight() -> None:
    group = FakeGroup()
    link = link_over(group)
    for _ in range(5):
        link.send(torch.zeros(1, 2))
    assert group.targets == [2] * 5
    assert [transfer.was_waited_for for transfer in group.sent] == [True, True, False, False, False]


def test_a_stream_comes_in_the_shape_and_dtype_of_the_model() -> None:
    stream = link_over(FakeGroup()).receive(4)
    assert (stream.shape, stream.dtype) == ((4, 2), torch.float16)
    assert bool((stream == 3).all())


def test_a_lost_stage_is_told_from_an_own_failure() -> None:
    group = FakeGroup()
    group.error = RuntimeError("Connection closed by peer")
    for call in (lambda: link_over(group).receive(1), lambda: link_over(group).send(torch.zeros(1, 2))):
        with pytest.raises(RankLost):
            call()
