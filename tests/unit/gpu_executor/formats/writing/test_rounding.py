"""Scales are chosen by squared error, a chunk of rows at a time."""

from __future__ import annotations

import pytest
import torch

from pagewire.gpu_executor.formats.quantized.integer_matrix import IntegerMatrix
from pagewire.gpu_executor.formats.writing import rounding
from pagewire.gpu_executor.formats.writing.rounding import refit, round_matrix


def squared_error(rounded: IntegerMatrix, matrix: torch.Tensor) -> float:
    return float((rounded.dequantize() - matrix.float()).square().sum())


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_search_never_costs_and_mostly_helps(is_symmetric: bool):
    matrix = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    searched = round_matrix(matrix, bits=4, group_size=32, is_symmetric=is_symmetric)
    plain = refit(matrix, searched, (1.0,), torch.float32)
    from_the_range = rounding.round_to_integers(matrix, bits=4, group_size=32, is_symmetric=is_symmetric)
    unsearched = refit(matrix, from_the_range, (1.0,), torch.float32)
    assert squared_error(plain, matrix) == pytest.approx(squared_error(searched, matrix))
    assert squared_error(searched, matrix) < 0.97 * squared_error(unsearched, matrix)


def test_chunks_of_rows_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch):
    matrix = torch.randn(17, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    whole = round_matrix(matrix, bits=4, group_size=32, is_symmetric=False)
    monkeypatch.setattr(rounding, "_CHUNK_VALUES", 3 * 64)
    chunked = round_matrix(matrix, bits=4, group_size=32, is_symmetric=False)
    for name in ("codes", "scale", "zero", "group_of"):
        assert torch.equal(getattr(whole, name), getattr(chunked, name)), name
