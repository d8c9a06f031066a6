"""Weights in float8_e4m3fn, with a scale for the matrix, for each row or for each block of it.

Files may hold a scale of activations besides (`input_scale`): see `take_activation_scales`.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pagewire.checkpoint.quantization.schemes import Fp8Scheme
from pagewire.ipc.errors import ConfigError

from ...kernels.layouts import FP8_TILE, GROUP_SIZE, DenseWeight, Fp8Weight, LinearWeight
from ...kernels.reference.dequantize import dequantize
from ..checkpoint_tensor import CheckpointTensor
from ..safetensors import SafetensorsTensor
from ..tensor_part import WHOLE_TENSOR, TensorPart
from .module_parts import ModuleParts, check_dtype
from .scales import (
    check_activation_scales,
    check_matrix,
    check_scale,
    part_by_row,
    read_scale,
    scale_shapes,
    take_activation_scales,
)

logger = logging.getLogger(__name__)

# The bits of a NaN but for its sign; there are no other numbers that are not finite.
_NAN_BITS = 0x7F
_MAX_CODE = torch.finfo(torch.float8_e4m3fn).max
# Backends may round a weight to 8-bit integers (codes to 127) whose scales are float16. No sound weight is near it.
_MAX_WEIGHT = 127 * torch.finfo(torch.float16).max


def read_fp8(parts: ModuleParts, scheme: Fp8Scheme) -> CheckpointTensor:
    """Put the tensors of an fp8 layer together.

    Raises:
        ConfigError: if one is missing, or has a shape or type that the scheme does not allow. The message names it.
    """
    weight = parts.take("weight")
    check_dtype(weight, "F8_E4M3")
    out_features, in_features = check_matrix(weight)
    # Called "inverse" where it is what quantizing divided by: the number that codes are multiplied by all the same.
    scale = parts.take_optional("weight_scale_inv") or parts.take("weight_scale")
    if scheme.granularity == "channel":
        check_scale(scale, (out_features, 1), (out_features,))
    elif scheme.block_shape is None:
        check_scale(scale, *scale_shapes(out_features, None))
    else:
        rows, columns = scheme.block_shape
        if columns % FP8_TILE and columns < in_features:
            raise ConfigError(
                f"{scale.source}: belongs to blocks of {rows} x {columns}; readable are blocks of a multiple of "
                f"{FP8_TILE} columns"
            )
        check_scale(scale, (-(-out_features // rows), -(-in_features // columns)))
    activation_scales = take_activation_scales(parts) if scheme.has_static_activations else []
    return Fp8Tensor(parts.module, weight, scale, scheme.block_shape, activation_scales)


class Fp8Tensor:
    """An fp8 weight and its scales; see `CheckpointTensor`.

    Args:
        module: canonical name of the layer.
        weight: [out_features, in_features].
        scale: by block, or of `scale_shapes`.
        block_shape: rows and columns that share a scale; None: by row or for all, by the shape of the scales.
        activation_scales: what `take_activation_scales` took.
    """

    def __init__(
        self,
        module: str,
        weight: SafetensorsTensor,
        scale: SafetensorsTensor,
        block_shape: tuple[int, int] | None,
        activation_scales: list[SafetensorsTensor],
    ) -> None:
        self.name = f"{module}.weight"
        self.source = weight.source
        self.shape: tuple[int, ...] = weight.shape
        self._weight = weight
        self._scale = scale
        self._block_shape = block_shape
        self._activation_scales = activation_scales
        self._part = WHOLE_TENSOR

    def sliced(self, part: TensorPart) -> Fp8Tensor:
        """Return a part, of a whole tensor; see `CheckpointTensor.sliced`."""
        assert self._part.is_whole, "a part is not cut again"
        piece = copy.copy(self)
        piece.shape, piece._part = part.shape_of(self.shape), part
        return piece

    def copy_to(self, destination: Tensor) -> None:
        """Unpack into `destination`; see `CheckpointTensor.copy_to`."""
        first = self._columns.start - self._read_columns.start
        destination.copy_(dequantize(self._read())[:, first : first + len(self._columns)])

    def read_matrix(self, dtype: torch.dtype | None) -> LinearWeight:
        """Read as it is stored; see `CheckpointTensor.read_matrix`."""
        if self._has_whole_tiles:
            return self._read()
        logger.info("%s: is cut within its tiles of scales; it takes more memory as a plain matrix", self.source)
        weight = torch.empty(self.shape, dtype=dtype or torch.float32)
        self.copy_to(weight)
        return DenseWeight(weight)

    def matrix_bytes(self, dtype: torch.dtype | None, max_scale_group: int = GROUP_SIZE) -> int:
        """Return about what a matrix takes; see `CheckpointTensor.matrix_bytes`."""
        itemsize = 1 if self._has_whole_tiles else (dtype or torch.float32).itemsize
        return self.shape[0] * self.shape[1] * itemsize

    @property
    def _columns(self) -> range:
        """The columns of this part."""
        return self._part.column_run(self._weight.shape[1])

    @property
    def _read_columns(self) -> range:
        """Columns that are read: those of the part, and others before them if a tile of scales is cut."""
        columns = self._columns
        if self._block_shape is None or _has_one_block(columns, self._block_shape):
            return columns
        # The last tile of a layout may be smaller, the first may not.
        return range(columns.start // FP8_TILE * FP8_TILE, columns.stop)

    @property
    def _has_whole_tiles(self) -> bool:
        return self._read_columns == self._columns

    def _read(self) -> Fp8Weight:
        weight = self._read_parts()
        # Codes are only multiplied out if the scales alone don't settle it.
        if float(weight.scale.abs().max()) * _MAX_CODE > _MAX_WEIGHT:
            largest = float(dequantize(weight).abs().max())
            if largest > _MAX_WEIGHT:
                raise ConfigError(
                    f"{self.source}: holds weights of up to {largest:.3g}, and {_MAX_WEIGHT:,.0f} is the most that can "
                    f"be; {self._scale.source} or the weight is damaged"
                )
        return weight

    def _read_parts(self) -> Fp8Weight:
        """Return the rows of this part, and the columns that are read."""
        check_activation_scales(self._activation_scales)
        rows, columns = self._part.row_runs(self._weight.shape[0]), self._read_columns
        codes = self._weight.sliced(TensorPart(rows, columns)).read()
        if bool((codes.view(torch.uint8) & _NAN_BITS == _NAN_BITS).any()):
            raise ConfigError(f"{self.source}: holds a NaN; the file is damaged")
        if self._block_shape is not None:
            return _in_tiles(codes, read_scale(self._scale), rows, columns, self._block_shape)
        scale = read_scale(part_by_row(self._scale, rows, range(1))).reshape(-1, 1)
        is_by_row = math.prod(self._scale.shape) == self._weight.shape[0]
        return Fp8Weight(codes, scale, 1 if is_by_row else len(codes), len(columns))


def _has_one_block(columns: range, block_shape: tuple[int, int]) -> bool:
    return columns.start // block_shape[1] == (columns.stop - 1) // block_shape[1]


def _in_tiles(
    codes: Tensor, scale: Tensor, rows: Sequence[range], columns: range, block_shape: tuple[int, int]
) -> Fp8Weight:
    """Repeat the scales of blocks until each tile that the layout allows has one.

    Args:
        codes: [rows, columns] of the part.
        scale: of all blocks of the weight.
        rows: of the weight, that are in the part.
        columns: of the weight, that are in the part: of one block, or from the border of a tile on.
        block_shape: rows and columns that share a scale.
    """
    block_of = torch.cat([torch.arange(run.start, run.stop) for run in rows]) // block_shape[0]
    first_rows = block_of[::FP8_TILE]
    # Rows that are cut within blocks have their scales each.
    is_by_row = not torch.equal(first_rows.repeat_interleave(FP8_TILE)[: len(block_of)], block_of)
    tile_columns = len(columns) if _has_one_block(columns, block_shape) else FP8_TILE
    first_columns = torch.arange(columns.start, columns.stop, tile_columns) // block_shape[1]
    scale = scale[block_of if is_by_row else first_rows][:, first_columns]
    return Fp8Weight(codes, scale.contiguous(), 1 if is_by_row else FP8_TILE, tile_columns)
