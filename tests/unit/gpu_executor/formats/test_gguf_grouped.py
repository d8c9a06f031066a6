"""Grouped weights against the float32 unpacking, which is ggml's bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pagewire.checkpoint.ggml_types import GGMLType
from pagewire.gpu_executor.formats import gguf_grouped
from pagewire.gpu_executor.formats.gguf_dequantize import dequantize as unpack
from pagewire.gpu_executor.formats.gguf_grouped import bytes_per_value, convert
from pagewire.gpu_executor.kernels.layouts import Int4Weight, Int8Weight
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize

EXACT = [GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1, GGMLType.Q8_0, GGMLType.IQ4_NL]
ROUNDED = [GGMLType.Q2_K, GGMLType.Q3_K, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K, GGMLType.IQ4_XS]
# Where each block's fp16 scales lie.
HALVES = {
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,),
    GGMLType.IQ4_NL: (0,),
    GGMLType.IQ4_XS: (0,),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
}
by_name = pytest.mark.parametrize("ggml_type", [*EXACT, *ROUNDED], ids=lambda ggml_type: ggml_type.name)


def random_rows(ggml_type: GGMLType, num_rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Every pattern of codes and packed scales, with fp16 scales of the size of real ones."""
    generator = np.random.default_rng(seed)
    blocks = num_rows * columns // ggml_type.block_values
    raw = generator.integers(0, 256, (blocks, ggml_type.block_bytes), dtype=np.uint8)
    for offset in HALVES[ggml_type]:
        raw[:, offset : offset + 2] = generator.normal(0, 0.01, (blocks, 1)).astype(np.float16).view(np.uint8)
    return raw.reshape(num_rows, -1)


def weight_codes(weight: Int4Weight | Int8Weight) -> torch.Tensor:
    """The codes as numbers; of 4-bit weights in the order of the bytes."""
    if isinstance(weight, Int8Weight):
        return weight.codes.int()
    return torch.cat((weight.codes & 0x0F, weight.codes >> 4), dim=1).int()


def unpacked(raw: np.ndarray, ggml_type: GGMLType) -> torch.Tensor:
    return unpack(torch.from_numpy(raw).view(-1, ggml_type.block_bytes), ggml_type).view(len(raw), -1)


@pytest.mark.parametrize("ggml_type", EXACT, ids=lambda ggml_type: ggml_type.name)
def test_values_keep_their_bits(ggml_type: GGMLType) -> None:
    raw = random_rows(ggml_type, 37, 96)
    weight = convert(raw, None, ggml_type)
    assert weight is not None
    assert torch.equal(dequantize(weight), unpacked(raw, ggml_type))


@pytest.mark.parametrize("ggml_type", ROUNDED, ids=lambda ggml_type: ggml_type.name)
def test_k_quants_lose_one_rounding_of_scale_and_minimum_to_fp16(ggml_type: GGMLType) -> None:
    raw = random_rows(ggml_type, 37, 768)
    weight = convert(raw, None, ggml_type)
    assert weight is not None
    values, expected = dequantize(weight), unpacked(raw, ggml_type)
    groups = weight.scale.shape[1]
    scale = weight.scale.float().abs().view(37, groups, 1)
    minimum = torch.zeros(1) if weight.minimum is None else weight.minimum.float().abs().view(37, groups, 1)
    largest_code = weight_codes(weight).abs().max()
    bound = 2**-11 * (largest_code * scale + minimum) + 2**-24
    error = (values - expected).abs().view(37, groups, -1)
    assert (error <= 1.01 * bound).all()
    assert (error > 0.2 * bound).any()  # the bound is near what happens


@by_name
def test_rows_come_in_the_given_order(ggml_type: GGMLType) -> None:
    raw = random_rows(ggml_type, 12, 256)
    order = np.random.default_rng(1).permutation(12)
    weight, straight = convert(raw, order, ggml_type), convert(raw, None, ggml_type)
    assert weight is not None
    assert straight is not None
    assert torch.equal(dequantize(weight), dequantize(straight)[torch.from_numpy(order)])


@by_name
def test_matrix_of_many_chunks_is_the_same_as_of_one(ggml_type: GGMLType, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_rows(ggml_type, 23, 512)
    whole = convert(raw, None, ggml_type)
    monkeypatch.setattr(gguf_grouped, "_CHUNK_VALUES", 5 * 512)
    parts = convert(raw, None, ggml_type)
    assert whole is not None
    assert parts is not None
    assert torch.equal(whole.codes, parts.codes)
    assert torch.equal(dequantize(whole), dequantize(parts))


@by_name
def test_size_is_what_is_said_beforehand(ggml_type: GGMLType) -> None:
    weight = convert(random_rows(ggml_type, 8, 256), None, ggml_type)
    assert isinstance(weight, Int4Weight | Int8Weight)
    parts = [weight.codes, weight.scale] + ([] if weight.minimum is None else [weight.minimum])
    assert sum(part.nbytes for part in parts) == 8 * 256 * (bytes_per_value(ggml_type) or 0)


def test_code_of_minus_128_is_kept() -> None:
    raw = random_rows(GGMLType.Q8_0, 4, 64)
    raw[2, 5] = 128
    weight = convert(raw, None, GGMLType.Q8_0)
    assert weight is not None
    assert weight_codes(weight)[2, 3] == -128
    assert torch.equal(dequantize(weight), unpacked(raw, GGMLType.Q8_0))


@pytest.mark.parametrize("scale", [np.nan, np.inf, 60_000.0])
def test_scale_whose_minimum_leaves_fp16_leaves_the_matrix_to_be_unpacked(scale: float) -> None:
    raw = random_rows(GGMLType.Q4_0, 4, 64)
    raw[3, :2] = np.array([scale], dtype=np.float16).view(np.uint8)
    assert convert(raw, None, GGMLType.Q4_0) is None


def test_types_without_groups_are_left_to_others() -> None:
    assert convert(np.zeros((2, 64), dtype=np.uint8), None, GGMLType.F16) is None
    assert bytes_per_value(GGMLType.BF16) is None
