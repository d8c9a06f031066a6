"""Random weights in the canonical layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch

from pagewire.gpu_executor.kernels.layouts import GROUP_SIZE, DenseWeight, Fp8Weight, Int4Weight, Int8Weight

Grouped = TypeVar("Grouped", Int4Weight, Int8Weight)


def random_dense(
    out_features: int, in_features: int, dtype: torch.dtype = torch.float32, *, has_bias: bool = False, seed: int = 0
) -> DenseWeight:
    """A plain matrix of normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out_features, in_features, generator=generator).to(dtype)
    return DenseWeight(weight, _bias(out_features, has_bias, generator))


def random_int4(out_features: int, in_features: int, *, has_bias: bool = False, seed: int = 0) -> Int4Weight:
    """Every code, scales and minima of both signs; channels beyond in_features pad the last group as they must."""
    generator = torch.Generator().manual_seed(seed)
    num_groups = -(-in_features // GROUP_SIZE)
    codes = torch.randint(0, 16, (out_features, num_groups * GROUP_SIZE), dtype=torch.uint8, generator=generator)
    scale, minimum = (torch.randn(out_features, num_groups, generator=generator).half() for _ in range(2))
    codes[:, in_features:] = 0
    if in_features % GROUP_SIZE:
        minimum[:, -1] = 0.0  # a minimum would give its padding a value
    halves = codes.view(out_features, num_groups, 2, GROUP_SIZE // 2)
    packed = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(out_features, -1)
    return Int4Weight(packed, scale, minimum, in_features, _bias(out_features, has_bias, generator))


def random_int8(
    out_features: int,
    in_features: int,
    group_size: int = GROUP_SIZE,
    *,
    has_minimum: bool = False,
    has_bias: bool = False,
    seed: int = 0,
) -> Int8Weight:
    """Every code but -128, scales of both signs; in_features is a multiple of 32."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-127, 128, (out_features, in_features), dtype=torch.int8, generator=generator)
    scale, minimum = (
        torch.randn(out_features, in_features // group_size, generator=generator).half() for _ in range(2)
    )
    return Int8Weight(codes, scale, minimum if has_minimum else None, _bias(out_features, has_bias, generator))


def random_fp8(
    out_features: int, in_features: int, tile_rows: int, tile_columns: int, *, has_bias: bool = False, seed: int = 0
) -> Fp8Weight:
    """Every finite code, the smallest and both zeros too; a scale for each tile."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 0x7F, (out_features, in_features), dtype=torch.uint8, generator=generator)
    signs = torch.randint(0, 2, codes.shape, dtype=torch.uint8, generator=generator) << 7
    scale = 0.1 + torch.rand(-(-out_features // tile_rows), -(-in_features // tile_columns), generator=generator)
    bias = _bias(out_features, has_bias, generator)
    return Fp8Weight((codes | signs).view(torch.float8_e4m3fn), scale, tile_rows, tile_columns, bias)


def with_large_groups(weight: Grouped, group_size: int) -> Grouped:
    """The weight with the scales (and minima) of the first of its groups in each run of `group_size` channels."""
    repeats = group_size // (weight.group_size if isinstance(weight, Int8Weight) else GROUP_SIZE)

    def repeated(numbers: torch.Tensor) -> torch.Tensor:
        return numbers[:, ::repeats].repeat_interleave(repeats, dim=1)[:, : numbers.shape[1]].contiguous()

    minimum = None if weight.minimum is None else repeated(weight.minimum)
    return replace(weight, scale=repeated(weight.scale), minimum=minimum)


def permuted(weight: Grouped, seed: int = 0) -> Grouped:
    """The weight with its columns multiplying input channels in a random order."""
    order = torch.randperm(weight.in_features, generator=torch.Generator().manual_seed(seed))
    return replace(weight, permutation=order.to(torch.int32))


def _bias(out_features: int, has_bias: bool, generator: torch.Generator) -> torch.Tensor | None:
    return torch.randn(out_features, generator=generator) if has_bias else None
