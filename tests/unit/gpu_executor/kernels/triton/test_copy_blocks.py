from __future__ import annotations

import pytest
import torch

from pagewire.gpu_executor.kernels.triton.copy_blocks import copy_blocks
from pagewire.gpu_executor.kv_cache_spec import LayerKVCache

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 16, 64), torch.float16),
        ((1, 1, 5), torch.float8_e4m3fn),
        ((1, 1, 3), torch.float16),
        ((1, 3, 1), torch.float32),
        ((9, 16, 80), torch.bfloat16),
    ],
)
def test_copies_read_all_sources_before_any_write(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    key, value = torch.randint(256, (2, 5, num_bytes), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    cache = LayerKVCache(*(bits.clone().view(dtype).view(5, *shape) for bits in (key, value)))
    copy_blocks(cache, torch.tensor([0, 1, 1, 4]), torch.tensor([1, 2, 3, 0]))
    for bits, copied in ((key, cache.key), (value, cache.value)):
        assert torch.equal(copied.view(5, -1).view(torch.uint8), bits[torch.tensor([4, 0, 1, 1, 4])])


def test_no_copies_change_nothing() -> None:
    cache = LayerKVCache(torch.ones(2, 1, 4, 8), torch.ones(2, 1, 4, 8))
    nothing = torch.zeros(0, dtype=torch.int64)
    copy_blocks(cache, nothing, nothing)
    assert bool((cache.key == 1).all())
