"""Sums and gathers over shared memory, by ranks that are threads."""

from __future__ import annotations

import mmap

import pytest
import torch

from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing, load_library
from pagewire.gpu_executor.parallel.shared_memory_group import SharedMemoryGroup
from tests.support.shared_ranks import SharedMemoryRanks

NUM_RANKS = 3


@pytest.fixture(scope="module")
def ranks() -> SharedMemoryRanks:
    try:
        load_library()
    except LibraryMissing as exc:
        pytest.skip(str(exc))
    return SharedMemoryRanks(NUM_RANKS, area_bytes=1024)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_are_those_of_float32_in_rank_order_at_any_number_of_rows(
    ranks: SharedMemoryRanks, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(1)
    parts = [(torch.randn(33, 24, generator=generator) * 100**rank).to(dtype) for rank in range(NUM_RANKS)]
    expected = ((parts[0].float() + parts[1].float()) + parts[2].float()).to(dtype)
    backwards = ((parts[2].float() + parts[1].float()) + parts[0].float()).to(dtype)
    assert dtype != torch.float32 or not torch.equal(expected, backwards)  # the order shows
    for num_rows in (0, 1, 5, 33):  # 33 rows go in four pieces
        totals = ranks.run(lambda rank, n=num_rows: ranks.groups[rank].sum_in_order(parts[rank][:n].clone()))
        for total in totals:
            assert total.dtype == dtype
            assert torch.equal(total, expected[:num_rows])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int8])
def test_gathered_tensors_come_in_rank_order(ranks: SharedMemoryRanks, dtype: torch.dtype) -> None:
    parts = [torch.arange(900).view(3, 300).add(rank).to(dtype) for rank in range(NUM_RANKS)]
    for gathered in ranks.run(lambda rank: ranks.groups[rank].gather(parts[rank])):
        assert all(torch.equal(mine, expected) for mine, expected in zip(gathered, parts, strict=True))


def test_the_least_of_64_bits_is_found(ranks: SharedMemoryRanks) -> None:
    numbers = [3, -(2**40), 2**62]
    assert ranks.run(lambda rank: ranks.groups[rank].least(numbers[rank])) == [-(2**40)] * NUM_RANKS


def test_nothing_of_one_exchange_is_seen_in_another(ranks: SharedMemoryRanks) -> None:
    """Ranks run through many exchanges at their own pace, with nothing but the meetings between them."""

    def run(rank: int) -> list[float]:
        group = ranks.groups[rank]
        return [float(group.sum_in_order(torch.tensor([10.0**rank * turn]))) for turn in range(500)]

    assert ranks.run(run) == [[111.0 * turn for turn in range(500)]] * NUM_RANKS


def test_a_group_keeps_its_memory(ranks: SharedMemoryRanks) -> None:
    memory = mmap.mmap(-1, SharedMemoryGroup.num_bytes(1, 64))  # `ranks`: there is a library
    group = SharedMemoryGroup(memory, 0, 1, 64)
    with pytest.raises(BufferError):
        memory.close()
    assert group.least(5) == 5
