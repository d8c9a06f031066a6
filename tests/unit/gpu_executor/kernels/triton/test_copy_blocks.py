from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.triton import copy_blocks as module
from pagewire.gpu_executor.kernels.triton.copy_blocks import copy_blocks
from pagewire.gpu_executor.kv_cache_spec import LayerKVCache

pytestmark = pytest.mark.usefixtures("poisoned_memory")


each_kind_of_block = pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 16, 64), torch.float16),
        ((1, 1, 5), torch.float8_e4m3fn),
        ((1, 1, 3), torch.float16),
        ((1, 3, 1), torch.float32),
        ((9, 16, 80), torch.bfloat16),
    ],
)


def copied(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    sources: list[int],
    destinations: list[int],
    *,
    is_disjoint: bool = False,
) -> tuple[Tensor, Tensor]:
    """Copy among five blocks; return the bytes of keys and values before and after, [2, 5, bytes of a block] each."""
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    before = torch.randint(256, (2, 5, num_bytes), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    cache = LayerKVCache(*(bits.clone().view(dtype).view(5, *shape) for bits in before))
    copy_blocks(cache, torch.tensor(sources), torch.tensor(destinations), is_disjoint=is_disjoint)
    after = torch.stack([tensor.view(5, -1).view(torch.uint8) for tensor in (cache.key, cache.value)])
    return before, after


@each_kind_of_block
def test_copies_read_all_sources_before_any_write(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    before, after = copied(shape, dtype, [0, 1, 1, 4], [1, 2, 3, 0])
    assert torch.equal(after, before[:, torch.tensor([4, 0, 1, 1, 4])])


@each_kind_of_block
def test_blocks_that_is_disjoint_are_copied_in_one_launch(
    shape: tuple[int, int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_launches = 0
    launch = module._launch

    def counted(*args: Any) -> None:
        nonlocal num_launches
        num_launches += 1
        launch(*args)

    monkeypatch.setattr(module, "_launch", counted)
    before, after = copied(shape, dtype, [1, 1, 3], [0, 4, 2], is_disjoint=True)
    assert torch.equal(after, before[:, torch.tensor([1, 1, 3, 3, 1])])
    assert num_launches == 1


def test_no_copies_change_nothing() -> None:
    cache = LayerKVCache(torch.ones(2, 1, 4, 8), torch.ones(2, 1, 4, 8))
    nothing = torch.zeros(0, dtype=torch.int64)
    copy_blocks(cache, nothing, nothing)
    assert bool((cache.key == 1).all())
