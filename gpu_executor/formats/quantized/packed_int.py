"""Integers of 4 or 8 bits in words of 32, as compressed-tensors' "pack-quantized" files hold them.

Codes have no sign: half the range is added. A word holds neighbouring channels of a row, the first in its lowest bits;
zero points are packed in the same way, but down the rows. Those of symmetric weights are not stored, or as plain zeros.

Source: https://github.com/vllm-project/compressed-tensors, pack_quantized compressor.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from pagewire.checkpoint.quantization.schemes import PackedIntScheme
from pagewire.ipc.errors import ConfigError

from ..checkpoint_tensor import CheckpointTensor
from ..safetensors import SafetensorsTensor
from ..tensor_part import TensorPart
from .bit_packing import unpack_columns, unpack_rows, words_of
from .module_parts import ModuleParts, check_dtype, check_shape
from .packed_tensor import IntegerTensor, of_each_run
from .scales import (
    by_row,
    check_no_zero_points,
    check_order,
    check_scale,
    check_zero_points,
    num_groups_of,
    part_by_row,
    read_groups,
    read_scale,
    scale_shapes,
)

_WORD_BITS = 32


def read_packed_int(parts: ModuleParts, scheme: PackedIntScheme) -> CheckpointTensor:
    """Put the tensors of a layer of packed integers together.

    Raises:
        ConfigError: if one is missing, or has a shape or type that the scheme does not allow. The message names it.
    """
    packed, out_and_in = parts.take("weight_packed"), parts.take("weight_shape")
    check_dtype(packed, "I32")
    out_features, in_features = _read_shape(out_and_in)
    check_shape(packed, (out_features, _num_words(in_features, scheme.bits)))
    num_groups = None if scheme.group_size is None else -(-in_features // scheme.group_size)
    shapes = scale_shapes(out_features, num_groups)
    scale = check_scale(parts.take("weight_scale"), *shapes)
    zero_point = parts.take_optional("weight_zero_point") if scheme.is_symmetric else parts.take("weight_zero_point")
    if zero_point is not None and scheme.is_symmetric:
        check_zero_points(zero_point, *shapes)
    elif zero_point is not None:
        check_dtype(zero_point, "I32")
        check_shape(zero_point, (_num_words(out_features, scheme.bits), num_groups or 1))
    order = check_order(parts.take("weight_g_idx"), in_features) if scheme.has_permutation else None
    return PackedIntTensor(parts.module, scheme, (out_features, in_features), packed, scale, zero_point, order)


class PackedIntTensor(IntegerTensor):
    """A weight of packed integers and its scales.

    Args:
        module: canonical name of the layer.
        scheme: how it is packed.
        shape: [out_features, in_features].
        packed: [out_features, words of a row] int32.
        scale: of `scale_shapes`.
        zero_point: [words of out_features, num_groups] int32, of a symmetric weight zeros of `scale_shapes`; None: half
            the range.
        order: `weight_g_idx`, or None: groups are runs of channels.
    """

    def __init__(
        self,
        module: str,
        scheme: PackedIntScheme,
        shape: tuple[int, int],
        packed: SafetensorsTensor,
        scale: SafetensorsTensor,
        zero_point: SafetensorsTensor | None,
        order: SafetensorsTensor | None,
    ) -> None:
        super().__init__(module, packed.source, shape, scheme.bits, scheme.group_size)
        self._scheme = scheme
        self._packed = packed
        self._scale = scale
        self._zero_point = zero_point
        self._order = order

    def read_group_of(self) -> Tensor:
        """See `IntegerTensor.read_group_of`."""
        return read_groups(self._order, self._whole_shape[1], self._group_size, num_groups_of(self._scale))

    def read_codes(self, rows: Sequence[range], columns: range) -> Tensor:
        """See `IntegerTensor.read_codes`."""
        words = words_of(columns, self._bits)
        stored = self._packed.sliced(TensorPart(tuple(rows), words.run)).read()
        return words.cut(unpack_rows(stored, self._bits))

    def read_scale_and_zero(self, rows: Sequence[range], groups: range) -> tuple[Tensor, Tensor]:
        """See `IntegerTensor.read_scale_and_zero`."""
        scale = by_row(read_scale(part_by_row(self._scale, rows, groups)), rows)
        if self._zero_point is not None and self._scheme.is_symmetric:
            check_no_zero_points(self._zero_point)
        elif self._zero_point is not None:
            read = partial(_read_zeros, self._zero_point, groups, self._bits)
            return scale, of_each_run(read, rows)
        return scale, torch.full_like(scale, 2 ** (self._bits - 1))


def _read_zeros(zero_point: SafetensorsTensor, groups: range, bits: int, rows: range) -> Tensor:
    """Read zero points that are packed down the rows, [rows, groups] float32."""
    words = words_of(rows, bits)
    stored = zero_point.sliced(TensorPart((words.run,), groups)).read()
    return words.cut(unpack_columns(stored, bits)).t().float()


def _read_shape(tensor: SafetensorsTensor) -> tuple[int, int]:
    """Read `weight_shape`: what the packed tensor alone does not tell, since its last word may be half empty."""
    check_dtype(tensor, "I32", "I64")
    check_shape(tensor, (2,))
    out_features, in_features = tensor.read().tolist()
    if min(out_features, in_features) < 1:
        raise ConfigError(f"{tensor.source}: holds [{out_features}, {in_features}], which is the shape of no weight")
    return out_features, in_features


def _num_words(num_codes: int, bits: int) -> int:
    return -(-num_codes * bits // _WORD_BITS)
