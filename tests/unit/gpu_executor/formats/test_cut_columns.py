from __future__ import annotations

from typing import Any

import pytest
import torch

from pagewire.gpu_executor.formats.cut_columns import cut_columns
from pagewire.gpu_executor.kernels.layouts import DenseWeight, Fp8Weight, Int4Weight, Int8Weight, LinearWeight
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize


def weights() -> list[LinearWeight]:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(6, 128, generator=generator)
    codes = torch.randint(0, 256, (6, 128), generator=generator, dtype=torch.uint8)
    scale, fine = numbers[:, :4].half(), numbers[:, :8].half()
    return [
        DenseWeight(numbers),
        Int4Weight(codes[:, :64].contiguous(), scale, scale * 3, 128),
        Int8Weight(codes.view(torch.int8), scale, scale * 3),
        Int8Weight(codes.view(torch.int8), fine),
        Fp8Weight(numbers.to(torch.float8_e4m3fn), numbers[:, :1].contiguous(), 1, 128),
    ]


@pytest.mark.parametrize("weight", weights(), ids=lambda weight: type(weight).__name__)
def test_columns_are_those_of_the_whole_in_the_same_layout(weight: LinearWeight) -> None:
    piece = cut_columns(weight, range(32, 96))
    assert type(piece) is type(weight)
    assert (piece.out_features, piece.in_features) == (6, 64)
    assert torch.equal(dequantize(piece), dequantize(weight)[:, 32:96])


def test_what_cannot_be_cut_is_named() -> None:
    options: dict[str, Any] = {"permutation": torch.arange(128, dtype=torch.int32)}
    codes, scale = torch.zeros(6, 128, dtype=torch.int8), torch.ones(6, 4, dtype=torch.float16)
    with pytest.raises(TypeError, match="Int8Weight"):
        cut_columns(Int8Weight(codes, scale, **options), range(32))
