"""Scales, zero points and orders of channels beside a quantized weight, checked and read alike for all formats.

What a weight needs is known once its shapes are checked; values are checked when they are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pagewire.ipc.errors import ConfigError

from ..safetensors import SafetensorsTensor
from ..tensor_part import TensorPart
from .integer_matrix import even_groups
from .module_parts import ModuleParts, check_dtype, check_shape

_FLOATS = ("F32", "F16", "BF16")
_ZERO_POINTS = ("I8", "I32", "I64")
_ONE_NUMBER: tuple[tuple[int, ...], ...] = ((), (1,))
# What every entry is where a file has a tensor of channels' groups and no order.
_NO_ORDER = (0, -1)


def check_matrix(tensor: SafetensorsTensor) -> tuple[int, int]:
    """Return the rows and columns of a weight.

    Raises:
        ConfigError: if it has another number of dimensions.
    """
    if len(tensor.shape) != 2:
        raise ConfigError(f"{tensor.source}: has shape {list(tensor.shape)}; a weight has rows and columns")
    return tensor.shape[0], tensor.shape[1]


def check_scale(tensor: SafetensorsTensor, *shapes: tuple[int, ...]) -> SafetensorsTensor:
    """Return a tensor of scales whose shape is among those that are allowed.

    Raises:
        ConfigError: if it has another shape, or holds no floats.
    """
    check_dtype(tensor, *_FLOATS)
    check_shape(tensor, *shapes)
    return tensor


def scale_shapes(out_features: int, num_groups: int | None) -> tuple[tuple[int, ...], ...]:
    """Return the shapes that scales (or zero points) may have.

    Args:
        out_features: rows of the weight.
        num_groups: of a row; None: scales are by row or for the whole matrix, by their shape.
    """
    return ((out_features, 1), (out_features,), *_ONE_NUMBER) if num_groups is None else ((out_features, num_groups),)


def check_zero_points(tensor: SafetensorsTensor, *shapes: tuple[int, ...]) -> SafetensorsTensor:
    """Return a tensor of plain (not packed) zero points; see `check_scale`."""
    check_dtype(tensor, *_ZERO_POINTS)
    check_shape(tensor, *shapes)
    return tensor


def check_no_zero_points(tensor: SafetensorsTensor) -> None:
    """Read the zero points of a symmetric weight, which some writers store all the same.

    Raises:
        ConfigError: if they are not zeros.
    """
    if tensor.read().any():
        raise ConfigError(
            f"{tensor.source}: holds zero points other than 0, and by the checkpoint's quantization_config the weight "
            "is symmetric. If it is not, its symmetric must be false."
        )


def check_order(tensor: SafetensorsTensor, in_features: int) -> SafetensorsTensor:
    """Return a tensor of each input channel's group, `g_idx` or `weight_g_idx`.

    Raises:
        ConfigError: if it has another shape, or holds no whole numbers.
    """
    check_dtype(tensor, "I32", "I64")
    check_shape(tensor, (in_features,))
    return tensor


def take_activation_scales(parts: ModuleParts) -> list[SafetensorsTensor]:
    """Take what a file that was calibrated for 8-bit activations says of them.

    It is not applied: kernels here keep activations finer than such a file asks for. That it is there and sound is
    checked all the same, as of every tensor: a file without it is one that was not written to its end.

    Raises:
        ConfigError: if there is no `input_scale`, or it has another shape than a number.
    """
    scales = [check_scale(parts.take("input_scale"), *_ONE_NUMBER)]
    zero_point = parts.take_optional("input_zero_point")
    if zero_point is not None:
        check_zero_points(zero_point, *_ONE_NUMBER)
    return scales


def read_scale(tensor: SafetensorsTensor) -> Tensor:
    """Return scales in float32.

    Raises:
        ConfigError: if one is a NaN or an infinity.
    """
    scale = tensor.read().float()
    if not scale.isfinite().all():
        raise ConfigError(f"{tensor.source}: holds a scale that is no finite number; the file is damaged")
    return scale


def check_activation_scales(scales: list[SafetensorsTensor]) -> None:
    """Read what `take_activation_scales` took.

    Raises:
        ConfigError: if a scale is no finite number above zero.
    """
    for tensor in scales:
        if not (read_scale(tensor) > 0).all():
            raise ConfigError(f"{tensor.source}: holds a scale that is not above zero; the file is damaged")


def num_groups_of(tensor: SafetensorsTensor) -> int:
    """Return how many scales (or zero points) of `scale_shapes` a row has."""
    return tensor.shape[1] if len(tensor.shape) == 2 else 1


def part_by_row(tensor: SafetensorsTensor, rows: Sequence[range], groups: range) -> SafetensorsTensor:
    """Return the part of scales or zero points that belongs to some rows and groups; of one number, that number.

    Args:
        tensor: of `scale_shapes`.
        rows: runs of output channels.
        groups: of a row.
    """
    if math.prod(tensor.shape) == 1:
        return tensor
    return tensor.sliced(TensorPart(tuple(rows), groups if len(tensor.shape) == 2 else None))


def by_row(numbers: Tensor, rows: Sequence[range]) -> Tensor:
    """Return what `part_by_row` gave as [rows, groups], whatever of `scale_shapes` it has."""
    if numbers.dim() == 2:
        return numbers
    return numbers.reshape(-1, 1).expand(sum(len(run) for run in rows), 1)


def read_groups(order: SafetensorsTensor | None, in_features: int, group_size: int | None, num_groups: int) -> Tensor:
    """Return the group of each input channel, [in_features] int64.

    Args:
        order: of `check_order`; None: groups are runs of channels. So are they if all its entries are 0 (some GPTQ
            tools) or -1 (compressed-tensors).
        in_features: columns of the weight.
        group_size: channels of a group; None: a row is one.
        num_groups: that have a scale.

    Raises:
        ConfigError: if it names a group that there is not.
    """
    runs = even_groups(in_features, group_size)
    if order is None:
        return runs
    group_of = order.read().to(torch.int64)
    if int(group_of[0]) in _NO_ORDER and bool((group_of == group_of[0]).all()):
        return runs
    outside = (group_of < 0) | (group_of >= num_groups)
    if bool(outside.any()):
        channel = int(outside.nonzero()[0])
        raise ConfigError(
            f"{order.source}: gives input channel {channel} to group {int(group_of[channel])}; there are groups 0 to "
            f"{num_groups - 1}"
        )
    return group_of
