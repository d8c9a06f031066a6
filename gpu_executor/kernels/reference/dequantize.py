"""Canonical weights as plain float32 matrices: what a quantized weight stands for."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layouts import GROUP_SIZE, DenseWeight, Fp8Weight, Int4Weight, Int8Weight, LinearWeight, StackedWeight


def dequantize(weight: LinearWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the matrix [out_features, in_features], each number rounded once a multiplication or addition.

    Args:
        weight: any canonical layout.
        dtype: to compute in: float32, or float64, which holds each number exactly.

    Raises:
        TypeError: if the layout is a backend's own, and not a canonical one.
    """
    match weight:
        case DenseWeight():
            return weight.weight.to(dtype)
        case Int4Weight():
            matrix = _dequantize_int4(weight.codes, weight.scale, weight.minimum, dtype)[:, : weight.in_features]
            return _in_order(matrix, weight.permutation)
        case Int8Weight():
            matrix = _dequantize_int8(weight.codes, weight.scale, weight.minimum, dtype)
            return _in_order(matrix, weight.permutation)
        case Fp8Weight():
            scale = weight.scale.repeat_interleave(weight.tile_rows, dim=0)[: weight.out_features]
            return _dequantize_fp8(weight.codes, scale, weight.tile_columns, dtype)
        case StackedWeight():
            return torch.cat([dequantize(part, dtype) for part in weight.parts])
    raise TypeError(f"{type(weight).__name__} is no canonical layout")


def dequantize_rows(weight: LinearWeight, rows: Tensor) -> Tensor:
    """Return some rows of the matrix, [num_rows, in_features]: float32, or a dense weight's own dtype.

    Args:
        weight: any canonical layout but a stack: an embedding is never stacked.
        rows: [num_rows] int64.

    Raises:
        TypeError: if the layout is another one.
    """
    match weight:
        case DenseWeight():
            return weight.weight.index_select(0, rows)
        case Int4Weight():
            codes, scale, minimum = (
                part.index_select(0, rows) for part in (weight.codes, weight.scale, weight.minimum)
            )
            matrix = _dequantize_int4(codes, scale, minimum, torch.float32)[:, : weight.in_features]
            return _in_order(matrix, weight.permutation)
        case Int8Weight():
            minima = None if weight.minimum is None else weight.minimum.index_select(0, rows)
            codes, scale = weight.codes.index_select(0, rows), weight.scale.index_select(0, rows)
            return _in_order(_dequantize_int8(codes, scale, minima, torch.float32), weight.permutation)
        case Fp8Weight():
            scale = weight.scale.index_select(0, rows // weight.tile_rows)
            # By their bytes: torch can't pick rows of fp8 numbers on every device.
            codes = weight.codes.view(torch.uint8).index_select(0, rows).view(weight.codes.dtype)
            return _dequantize_fp8(codes, scale, weight.tile_columns, torch.float32)
    raise TypeError(f"rows can't be looked up in a {type(weight).__name__}")


def bias_of(weight: LinearWeight) -> Tensor | None:
    """Return the bias of all rows, [out_features] float32; None if no part has one.

    Raises:
        TypeError: if the layout is a backend's own, and not a canonical one.
    """
    match weight:
        case DenseWeight() | Int4Weight() | Int8Weight() | Fp8Weight():
            return None if weight.bias is None else weight.bias.float()
        case StackedWeight():
            biases = [bias_of(part) for part in weight.parts]
            if all(bias is None for bias in biases):
                return None
            zeros = [torch.zeros(part.out_features) for part in weight.parts]
            return torch.cat([zero if bias is None else bias for bias, zero in zip(biases, zeros, strict=True)])
    raise TypeError(f"{type(weight).__name__} is no canonical layout")


def _in_order(matrix: Tensor, permutation: Tensor | None) -> Tensor:
    """Return the matrix with its columns in the order of input channels."""
    if permutation is None:
        return matrix
    ordered = torch.empty_like(matrix)
    ordered[:, permutation.long()] = matrix
    return ordered


def _dequantize_int4(codes: Tensor, scale: Tensor, minimum: Tensor, dtype: torch.dtype) -> Tensor:
    out_features, num_groups = scale.shape
    packed = codes.view(out_features, num_groups, GROUP_SIZE // 2)
    values = torch.cat((packed & 0x0F, packed >> 4), dim=2).to(dtype)
    return values.mul_(scale.to(dtype).unsqueeze(2)).add_(minimum.to(dtype).unsqueeze(2)).view(out_features, -1)


def _dequantize_int8(codes: Tensor, scale: Tensor, minimum: Tensor | None, dtype: torch.dtype) -> Tensor:
    out_features, num_groups = scale.shape
    values = codes.view(out_features, num_groups, -1).to(dtype).mul_(scale.to(dtype).unsqueeze(2))
    if minimum is not None:
        values.add_(minimum.to(dtype).unsqueeze(2))
    return values.view(out_features, -1)


def _dequantize_fp8(codes: Tensor, scale: Tensor, tile_columns: int, dtype: torch.dtype) -> Tensor:
    columns = scale.to(dtype).repeat_interleave(tile_columns, dim=1)[:, : codes.shape[1]]
    return codes.to(dtype).mul_(columns)
