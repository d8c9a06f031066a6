"""Weights in float8_e4m3fn, with a scale for the matrix, for each row or for each block of it.

Files may hold a scale of activations besides (`input_scale`): see `take_activation_scales`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pagewire.checkpoint.quantization.schemes import Fp8Scheme
from pagewire.ipc.errors import ConfigError

from ...kernels.layouts import FP8_TILE, GROUP_SIZE, Fp8Weight, LinearWeight
from ...kernels.reference.dequantize import dequantize
from ..checkpoint_tensor import CheckpointTensor
from ..safetensors import SafetensorsTensor
from .module_parts import ModuleParts, check_dtype
from .scales import (
    check_activation_scales,
    check_matrix,
    check_scale,
    read_scale,
    scale_shapes,
    take_activation_scales,
)

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

    def copy_to(self, destination: Tensor) -> None:
        """Unpack into `destination`; see `CheckpointTensor.copy_to`."""
        destination.copy_(dequantize(self._read()))

    def read_matrix(self, dtype: torch.dtype | None) -> LinearWeight:
        """Read as it is stored; see `CheckpointTensor.read_matrix`."""
        return self._read()

    def matrix_bytes(self, dtype: torch.dtype | None, max_scale_group: int = GROUP_SIZE) -> int:
        """Return about what a matrix takes; see `CheckpointTensor.matrix_bytes`."""
        return self.shape[0] * self.shape[1]

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
        check_activation_scales(self._activation_scales)
        codes = self._weight.read()
        if bool((codes.view(torch.uint8) & _NAN_BITS == _NAN_BITS).any()):
            raise ConfigError(f"{self.source}: holds a NaN; the file is damaged")
        scale = read_scale(self._scale)
        if self._block_shape is not None:
            return _in_tiles(codes, scale, self._block_shape)
        out_features, in_features = codes.shape
        is_by_row = scale.numel() == out_features
        return Fp8Weight(codes, scale.reshape(-1, 1), 1 if is_by_row else out_features, in_features)


def _in_tiles(codes: Tensor, scale: Tensor, block_shape: tuple[int, int]) -> Fp8Weight:
    """Repeat the scales of blocks until each tile that the layout allows has one."""
    (out_features, in_features), (rows, columns) = codes.shape, block_shape
    tile_rows = 1 if rows % FP8_TILE else FP8_TILE
    tile_columns = in_features if columns >= in_features else FP8_TILE
    scale = scale.repeat_interleave(rows // tile_rows, dim=0)[: -(-out_features // tile_rows)]
    if columns < in_features:
        scale = scale.repeat_interleave(columns // tile_columns, dim=1)[:, : -(-in_features // tile_columns)]
    return Fp8Weight(codes, scale.contiguous(), tile_rows, tile_columns)
