"""Integers with scales become a plain matrix, some rows at a time."""

from __future__ import annotations

import pytest
import torch

from pagewire.gpu_executor.formats.quantized import integer_matrix
from pagewire.gpu_executor.formats.quantized.integer_matrix import IntegerMatrix, even_groups


def matrix(rows: int, columns: int, group_of: torch.Tensor) -> IntegerMatrix:
    generator = torch.Generator().manual_seed(0)
    num_groups = int(group_of.max()) + 1
    return IntegerMatrix(
        bits=8,
        codes=torch.randint(0, 256, (rows, columns), dtype=torch.uint8, generator=generator),
        scale=torch.rand(rows, num_groups, generator=generator),
        zero=torch.randint(0, 256, (rows, num_groups), generator=generator).float(),
        group_of=group_of,
    )


@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_chunk_values", [1, 3 * 64, 1 << 20])
def test_each_number_is_its_groups_scale_times_its_distance_from_zero(
    monkeypatch: pytest.MonkeyPatch, num_chunk_values: int, dtype: torch.dtype, is_ordered: bool
) -> None:
    monkeypatch.setattr(integer_matrix, "_CHUNK_VALUES", num_chunk_values)
    group_of = even_groups(64, 32) if is_ordered else torch.arange(64) % 2
    stored = matrix(7, 64, group_of)
    expected = torch.empty(7, 64, dtype=torch.float64)
    for row in range(7):
        for column, group in enumerate(group_of.tolist()):
            code = int(stored.codes[row, column]) - float(stored.zero[row, group])
            expected[row, column] = code * float(stored.scale[row, group])
    assert torch.equal(stored.dequantize(dtype), expected.float().to(dtype))
    # Where the matrix belongs may be a part of a larger one.
    whole = torch.full((9, 70), torch.nan, dtype=dtype)
    stored.copy_to(whole[1:8, 3:67])
    assert torch.equal(whole[1:8, 3:67], expected.float().to(dtype))
    assert int(whole.isnan().sum()) == 9 * 70 - 7 * 64
