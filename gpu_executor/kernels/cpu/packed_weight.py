"""Weights in the native kernels' own order: panels, packed once at load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..layouts import DenseWeight, Int4Weight, Int8Weight, LinearWeight
from .engine import NativeEngine
from .kernel_layouts import KernelLayout, in_kernel_layouts
from .native_library import LinearView, PackedMatrix

# csrc/weights/packed_matrix.h: WeightLayout.
_DENSE_LAYOUTS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_INT4, _INT8, _INT8_HALF = 3, 4, 5
_INT8_LAYOUTS = {32: _INT8, 16: _INT8_HALF}


@dataclass(frozen=True, slots=True)
class _Matrix:
    """What the kernels read of one matrix, and the memory behind the pointers."""

    view: PackedMatrix
    panels: Tensor
    bias: Tensor | None


class PackedWeight(LinearWeight):
    """A weight in panels. Only the native library reads it.

    Args:
        matrices: its parts; the rows of each lie below those of the one before.
        permutation: [in_features] int32: column j of all parts multiplies input channel permutation[j]; None: channel
            j.
    """

    __slots__ = ("_matrices", "_parts", "_permutation", "view")

    def __init__(self, matrices: Sequence[_Matrix], permutation: Tensor | None) -> None:
        self._matrices = tuple(matrices)
        self._parts = (PackedMatrix * len(matrices))(*(matrix.view for matrix in matrices))
        assert permutation is None or permutation.dtype == torch.int32, "the library reads 32-bit indices"
        self._permutation = _contiguous(permutation)
        # Points into _parts and _permutation, which this object keeps.
        self.view = LinearView(self._parts, len(matrices), _address(self._permutation))

    @property
    def out_features(self) -> int:
        return sum(int(matrix.view.out_features) for matrix in self._matrices)

    @property
    def in_features(self) -> int:
        return int(self._matrices[0].view.in_features)

    @property
    def num_bytes(self) -> int:
        """Bytes of its panels."""
        return sum(matrix.panels.numel() for matrix in self._matrices)


def pack_weight(engine: NativeEngine, weight: LinearWeight) -> PackedWeight:
    """Pack a canonical weight on all threads; a packed one is returned as it is.

    What the kernels don't multiply as it is becomes what they do: see `in_kernel_layouts` for the loss.

    Raises:
        TypeError: the layout is unknown here.
    """
    if isinstance(weight, PackedWeight):
        return weight
    parts, permutation = in_kernel_layouts(weight)
    return PackedWeight([_pack(engine, part) for part in parts], permutation)


def _pack(engine: NativeEngine, weight: KernelLayout) -> _Matrix:
    scale: Tensor | None = None
    minimum: Tensor | None = None
    match weight:
        case DenseWeight():
            layout, codes = _DENSE_LAYOUTS[weight.weight.dtype], weight.weight
        case Int4Weight():
            layout, codes, scale, minimum = _INT4, weight.codes, weight.scale, weight.minimum
        case Int8Weight():
            layout, codes = _INT8_LAYOUTS[weight.group_size], weight.codes
            scale, minimum = weight.scale, weight.minimum
    # The library reads plain memory: what a loader left as a view of something larger is copied.
    codes, scale, minimum = codes.contiguous(), _contiguous(scale), _contiguous(minimum)
    shape = (layout, int(minimum is not None), weight.out_features, weight.in_features)
    panels = engine.panel_memory.allocate(engine.library.pagewire_packed_bytes(*shape))
    assert panels.data_ptr() % 64 == 0, "panels begin on a cache line"
    engine.call("pagewire_pack", *shape, codes.data_ptr(), _address(scale), _address(minimum), panels.data_ptr())
    bias = None if weight.bias is None else weight.bias.to(torch.float32).contiguous()
    return _Matrix(PackedMatrix(*shape, panels.data_ptr(), _address(bias)), panels, bias)


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
