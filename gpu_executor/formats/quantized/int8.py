"""Integers of up to 8 bits, a byte each, as compressed-tensors' "int-quantized" files hold them.

Files may hold a scale of activations besides (`input_scale`): see `take_activation_scales`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pagewire.checkpoint.quantization.schemes import Int8Scheme

from ..checkpoint_tensor import CheckpointTensor
from ..safetensors import SafetensorsTensor
from ..tensor_part import TensorPart
from .module_parts import ModuleParts, check_dtype
from .packed_tensor import IntegerTensor
from .scales import (
    by_row,
    check_activation_scales,
    check_matrix,
    check_no_zero_points,
    check_order,
    check_scale,
    check_zero_points,
    num_groups_of,
    part_by_row,
    read_groups,
    read_scale,
    scale_shapes,
    take_activation_scales,
)

_BITS = 8
_CENTER = 128  # of codes without a sign


def read_int8(parts: ModuleParts, scheme: Int8Scheme) -> CheckpointTensor:
    """Put the tensors of a layer of signed bytes together.

    Raises:
        ConfigError: if one is missing, or has a shape or type that the scheme does not allow. The message names it.
    """
    weight = parts.take("weight")
    check_dtype(weight, "I8")
    out_features, in_features = check_matrix(weight)
    num_groups = None if scheme.group_size is None else -(-in_features // scheme.group_size)
    shapes = scale_shapes(out_features, num_groups)
    scale = check_scale(parts.take("weight_scale"), *shapes)
    zero_point = parts.take_optional("weight_zero_point") if scheme.is_symmetric else parts.take("weight_zero_point")
    if zero_point is not None:
        check_zero_points(zero_point, *shapes)
    order = check_order(parts.take("weight_g_idx"), in_features) if scheme.has_permutation else None
    activation_scales = take_activation_scales(parts) if scheme.has_static_activations else []
    return Int8Tensor(parts.module, scheme, weight, scale, zero_point, order, activation_scales)


class Int8Tensor(IntegerTensor):
    """A weight of signed bytes and its scales.

    Args:
        module: canonical name of the layer.
        scheme: how it is stored.
        weight: [out_features, in_features].
        scale: of `scale_shapes`.
        zero_point: like `scale`, or None: zeros, as all are of a symmetric weight.
        order: `weight_g_idx`, or None: groups are runs of channels.
        activation_scales: what `take_activation_scales` took.
    """

    def __init__(
        self,
        module: str,
        scheme: Int8Scheme,
        weight: SafetensorsTensor,
        scale: SafetensorsTensor,
        zero_point: SafetensorsTensor | None,
        order: SafetensorsTensor | None,
        activation_scales: list[SafetensorsTensor],
    ) -> None:
        super().__init__(module, weight.source, check_matrix(weight), _BITS, scheme.group_size)
        self._scheme = scheme
        self._weight = weight
        self._scale = scale
        self._zero_point = zero_point
        self._order = order
        self._activation_scales = activation_scales

    def read_group_of(self) -> Tensor:
        """See `IntegerTensor.read_group_of`."""
        return read_groups(self._order, self._whole_shape[1], self._group_size, num_groups_of(self._scale))

    def read_codes(self, rows: Sequence[range], columns: range) -> Tensor:
        """See `IntegerTensor.read_codes`."""
        stored = self._weight.sliced(TensorPart(tuple(rows), columns)).read()
        return stored.view(torch.uint8) ^ _CENTER  # the sign bit: 128 is added

    def read_scale_and_zero(self, rows: Sequence[range], groups: range) -> tuple[Tensor, Tensor]:
        """See `IntegerTensor.read_scale_and_zero`."""
        check_activation_scales(self._activation_scales)
        scale = by_row(read_scale(part_by_row(self._scale, rows, groups)), rows)
        if self._zero_point is not None and self._scheme.is_symmetric:
            check_no_zero_points(self._zero_point)
        elif self._zero_point is not None:
            return scale, by_row(part_by_row(self._zero_point, rows, groups).read().float(), rows) + _CENTER
        return scale, torch.full_like(scale, _CENTER)
