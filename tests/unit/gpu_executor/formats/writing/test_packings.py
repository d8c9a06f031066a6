"""What is packed comes out again by the formats' descriptions, rounded as well as the bits allow."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.formats.writing.compressed_tensors import FloatQuantized, PackQuantized
from pagewire.gpu_executor.formats.writing.gptq import GPTQPacking
from pagewire.gpu_executor.formats.writing.packing import Packing, pack_words, pack_words_down, scale_dtype
from pagewire.ipc.errors import ConfigError
from tests.support.unpacking import unpack_layer

INTEGERS = [
    PackQuantized(4, 32, is_symmetric=True),
    PackQuantized(4, 64, is_symmetric=False),
    PackQuantized(4, None, is_symmetric=False),
    PackQuantized(8, 32, is_symmetric=True),
    PackQuantized(8, None, is_symmetric=True),
    PackQuantized(8, 128, is_symmetric=False),
    GPTQPacking(4, 32),
    GPTQPacking(4, None),
    GPTQPacking(8, 128),
]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def matrix_of(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Normal numbers, off center, so that zero points have something to do; a group of zeros and a lone outlier."""
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) * 0.02 + 0.01
    matrix[0] = 0
    matrix[1, 3] = 1.5
    return matrix.to(dtype)


def packed(packing: Packing, matrix: Tensor) -> dict[str, Tensor]:
    """The tensors of a layer `m`; they are what the packing announced."""
    specs = packing.specs((matrix.shape[0], matrix.shape[1]), matrix.dtype)
    tensors = packing.pack(matrix)
    assert [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors] == [(spec.dtype, spec.shape) for spec in specs]
    return {f"m.{spec.name}": tensor for spec, tensor in zip(specs, tensors, strict=True)}


@pytest.mark.parametrize("packing", INTEGERS, ids=lambda packing: packing.describe())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_integers_lie_within_a_step_of_the_weights(packing: PackQuantized | GPTQPacking, dtype: torch.dtype):
    matrix = matrix_of(24, 256, dtype)
    unpacked = unpack_layer(packed(packing, matrix), "m", packing.quantization_config())
    groups = matrix.double().view(24, -1, packing.group_size or 256)
    is_symmetric = getattr(packing, "is_symmetric", True)
    spread = 2 * groups.abs().amax(2) if is_symmetric else groups.amax(2).clamp(min=0) - groups.amin(2).clamp(max=0)
    step = (spread / (2**packing.bits - 2)).unsqueeze(2)
    error = (unpacked.view_as(groups) - groups).abs()
    # A clipped scale may cost the largest weights of a group more, and leaves the others a finer step.
    assert (error.square().mean(2, keepdim=True).sqrt() <= 0.5 * step + 1e-12).all()
    assert (unpacked[0] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fp8_lies_within_a_sixteenth_of_each_weight(dtype: torch.dtype):
    matrix = matrix_of(24, 100, dtype)
    tensors = packed(FloatQuantized(), matrix)
    unpacked = unpack_layer(tensors, "m", FloatQuantized().quantization_config())
    smallest = tensors["m.weight_scale"].double() * 2**-9
    error = (unpacked - matrix.double()).abs()
    assert (error <= (matrix.double().abs() / 15).maximum(smallest)).all()
    assert (unpacked[0] == 0).all()


@pytest.mark.parametrize("packing", INTEGERS[:1] + INTEGERS[4:5], ids=lambda packing: packing.describe())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_stored_scales_are_numbers_that_every_reader_keeps(packing: Packing, dtype: torch.dtype):
    scale = packed(packing, matrix_of(24, 256, dtype))["m.weight_scale"]
    assert scale.dtype == dtype
    assert torch.equal(scale.float(), scale.to(torch.float16).float())
    assert torch.equal(scale.float(), scale.to(scale_dtype(dtype)).float())


def test_words_hold_the_first_code_in_their_lowest_bits():
    codes = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 15]], dtype=torch.uint8)
    assert pack_words(codes, 4).tolist() == [[0x87654321 - 2**32, 15]]
    assert pack_words(codes, 8).tolist() == [[0x04030201, 0x08070605, 0x0F]]
    assert pack_words_down(codes.t(), 8).tolist() == [[0x04030201], [0x08070605], [0x0F]]


def test_zero_points_of_a_last_word_are_padded():
    packing = PackQuantized(4, 32, is_symmetric=False)
    matrix = matrix_of(11, 64, torch.bfloat16)
    tensors = packed(packing, matrix)
    assert tensors["m.weight_zero_point"].shape == (2, 2)
    unpacked = unpack_layer(tensors, "m", packing.quantization_config())
    assert (unpacked - matrix.double()).square().mean().sqrt() < 0.02


@pytest.mark.parametrize(
    ("packing", "shape", "part"),
    [
        (PackQuantized(4, 128, is_symmetric=True), (64, 192), "no multiple of --group-size 128; give --group-size 64"),
        (PackQuantized(4, 32, is_symmetric=True), (64, 40), "no multiple of --group-size 32; give --group-size -1"),
        (GPTQPacking(4, 32), (60, 64), "gptq packs 8 channels a word, which 60 x 64 is no multiple of"),
    ],
)
def test_matrix_that_can_not_be_packed_is_named(packing: Packing, shape: tuple[int, int], part: str):
    with pytest.raises(ConfigError, match=f"^m: .*{part}"):
        packing.check("m", shape)
