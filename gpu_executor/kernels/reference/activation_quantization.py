"""What integer kernels compute, simulated: activations rounded to 8 bits by row and group of 32 channels.

Groups are those of the weight: its permutation of input channels comes first.

The rounding is the kernels' own, so that a test can tell their arithmetic from the loss that rounding brings: against
`linear` here a kernel differs by the order of its float32 additions alone, against the plain `linear` by about 0.5 % of
the typical output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..layouts import GROUP_SIZE, Int4Weight, Int8Weight, LinearWeight, StackedWeight
from .dequantize import bias_of, dequantize

_MAX_VALUE = 127.0
_LEAST_MAGNITUDE = 2.0**-121  # 127 / anything less is no float32 any more


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Rows of activations: value ~ scale of its group * integer.

    Attributes:
        values: [num_rows, num_groups * 32] int8, -127 to 127; what pads the last group is zero.
        scales: [num_rows, num_groups] float32.
    """

    values: Tensor
    scales: Tensor


def quantize_rows(x: Tensor) -> QuantizedRows:
    """Round each group of a row to integers of its largest magnitude / 127, half to even.

    A group of zeros, or of numbers below 4e-37, has scale 0; one with an infinity or a NaN has scale NaN.

    Args:
        x: [num_rows, in_features] float32.
    """
    num_rows, in_features = x.shape
    num_groups = -(-in_features // GROUP_SIZE)
    groups = torch.zeros(num_rows, num_groups * GROUP_SIZE)
    groups[:, :in_features] = x
    groups = groups.view(num_rows, num_groups, GROUP_SIZE)
    most = groups.abs().amax(dim=2)  # NaN if one is
    is_usable = most.isfinite() & (most >= _LEAST_MAGNITUDE)
    divisor = torch.where(is_usable, most, 1.0)
    values = torch.where(is_usable.unsqueeze(2), groups, 0.0) * (_MAX_VALUE / divisor).unsqueeze(2)
    scales = torch.where(most.isfinite(), torch.where(is_usable, most / _MAX_VALUE, 0.0), torch.nan)
    return QuantizedRows(values.round().to(torch.int8).view(num_rows, -1), scales)


def dequantize_rows(rows: QuantizedRows, in_features: int) -> Tensor:
    """Return what the rows stand for, [num_rows, in_features] float64, exact."""
    num_rows, num_groups = rows.scales.shape
    values = rows.values.view(num_rows, num_groups, GROUP_SIZE).double() * rows.scales.double().unsqueeze(2)
    return values.view(num_rows, -1)[:, :in_features]


def linear(x: Tensor, weight: LinearWeight) -> Tensor:
    """Multiply rounded activations by grouped weights, and activations as they are by dense ones; add the bias.

    Args:
        x: [num_rows, in_features] float32.
        weight: in any canonical layout.

    Returns:
        [num_rows, out_features] float64, accumulated in float64.
    """
    if isinstance(weight, StackedWeight):
        return torch.cat([linear(x, part) for part in weight.parts], dim=1)
    rows = _rounded(x, weight.permutation) if isinstance(weight, Int4Weight | Int8Weight) else x.double()
    product = rows @ dequantize(weight, torch.float64).t()
    bias = bias_of(weight)
    return product if bias is None else product + bias


def _rounded(x: Tensor, permutation: Tensor | None) -> Tensor:
    """Round rows, [num_rows, in_features] float32 to the same in float64, by the groups that a permutation makes."""
    if permutation is None:
        return dequantize_rows(quantize_rows(x), x.shape[1])
    order = permutation.long()
    rounded = torch.empty(x.shape, dtype=torch.float64)
    rounded[:, order] = dequantize_rows(quantize_rows(x[:, order]), x.shape[1])
    return rounded
