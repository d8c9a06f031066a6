"""Sums over gloo, by ranks that are threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.parallel.process_groups import distributed, make_gloo_group
from pagewire.gpu_executor.parallel.torch_group import ReducingGroup, TorchGroup
from pagewire.ipc.errors import RankLost

CPU = torch.device("cpu")
NUM_RANKS = 3


@pytest.fixture
def groups(tmp_path: Path) -> list[TorchGroup]:
    def join(rank: int) -> TorchGroup:
        store = distributed.FileStore(str(tmp_path / "store"), NUM_RANKS)
        return TorchGroup(make_gloo_group(store, "layers", rank, NUM_RANKS, "127.0.0.1"), CPU)

    with ThreadPoolExecutor(NUM_RANKS) as threads:
        return list(threads.map(join, range(NUM_RANKS)))


def summed(groups: list[TorchGroup], parts: list[Tensor]) -> list[Tensor]:
    with ThreadPoolExecutor(len(groups)) as threads:
        return list(threads.map(lambda group, part: group.sum_in_order(part.clone()), groups, parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_are_those_of_float32_in_rank_order_at_any_number_of_rows(
    groups: list[TorchGroup], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(1)
    parts = [(torch.randn(33, 24, generator=generator) * 100**rank).to(dtype) for rank in range(NUM_RANKS)]
    expected = ((parts[0].float() + parts[1].float()) + parts[2].float()).to(dtype)
    backwards = ((parts[2].float() + parts[1].float()) + parts[0].float()).to(dtype)
    assert dtype != torch.float32 or not torch.equal(expected, backwards)  # the order shows
    for num_rows in (1, 5, 33):
        for total in summed(groups, [part[:num_rows] for part in parts]):
            assert total.dtype == dtype
            assert torch.equal(total, expected[:num_rows])


def test_gathered_tensors_come_in_rank_order(groups: list[TorchGroup]) -> None:
    with ThreadPoolExecutor(NUM_RANKS) as threads:
        gathered = threads.map(lambda group: group.gather(torch.full((2, 1), float(group.rank))), groups)
    assert [[part.tolist() for part in parts] for parts in gathered] == [[[[r], [r]] for r in (0.0, 1.0, 2.0)]] * 3


def test_a_reduction_gives_all_ranks_the_same_sum(groups: list[TorchGroup]) -> None:
    reducing = [ReducingGroup(group.process_group, CPU) for group in groups]
    totals = summed(reducing, [torch.tensor([1.0]), torch.tensor([20.0]), torch.tensor([300.0])])  # type: ignore[arg-type]
    assert [total.item() for total in totals] == [321, 321, 321]


def test_only_groups_of_gpus_can_be_captured(groups: list[TorchGroup]) -> None:
    assert not groups[0].can_be_captured
    assert TorchGroup(groups[0].process_group, torch.device("cuda")).can_be_captured


class BrokenGroup:
    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def allgather(self, outputs: object, inputs: object) -> object:
        raise RuntimeError("[pair.cc:534] Connection closed by peer [127.0.0.1]:1. Check the logs.\nAnd a stack")

    allreduce = send = recv = allgather


@pytest.mark.parametrize("call", ["sum_in_order", "gather"])
def test_a_lost_peer_is_told_from_an_own_failure(call: str) -> None:
    group = TorchGroup(BrokenGroup(), CPU)  # type: ignore[arg-type]
    with pytest.raises(RankLost, match=r"computes with: Connection closed by peer \[127.0.0.1\]:1$"):
        getattr(group, call)(torch.ones(1))
