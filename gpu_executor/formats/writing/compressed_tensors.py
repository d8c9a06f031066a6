"""compressed-tensors: "pack-quantized" integers and "float-quantized" numbers of 8 bits.

Source: the package compressed-tensors, https://github.com/vllm-project/compressed-tensors (config_groups, packing of
codes along input channels, of zero points along output channels).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...quantization.round_to_nearest import round_to_fp8
from ..quantized.integer_matrix import IntegerMatrix
from .packing import IntegerPacking, Packing, TensorSpec, check_groups, pack_words, pack_words_down, scale_dtype


@dataclass(frozen=True, slots=True)
class PackQuantized(IntegerPacking):
    """Integers of 4 or 8 bits, eight or four a word; activations stay as they are.

    Attributes:
        bits: 4 or 8.
        group_size: input channels that share a scale; None: a row.
        is_symmetric: there are no zero points.
    """

    bits: int
    group_size: int | None
    is_symmetric: bool

    def describe(self) -> str:
        groups = "rows" if self.group_size is None else f"groups of {self.group_size}"
        return f"compressed-tensors pack-quantized, {groups}, {'symmetric' if self.is_symmetric else 'asymmetric'}"

    def quantization_config(self) -> dict[str, object]:
        return _config(
            "pack-quantized",
            {
                "num_bits": self.bits,
                "type": "int",
                "symmetric": self.is_symmetric,
                "strategy": "channel" if self.group_size is None else "group",
                "group_size": self.group_size,
                "dynamic": False,
            },
            input_activations=None,
        )

    def check(self, module: str, shape: tuple[int, int]) -> None:
        check_groups(module, shape[1], self.group_size)

    def specs(self, shape: tuple[int, int], dtype: torch.dtype) -> list[TensorSpec]:
        rows, columns = shape
        per_word = 32 // self.bits
        num_groups = 1 if self.group_size is None else columns // self.group_size
        specs = [
            TensorSpec("weight_packed", torch.int32, (rows, -(-columns // per_word))),
            TensorSpec("weight_scale", dtype, (rows, num_groups)),
            TensorSpec("weight_shape", torch.int64, (2,)),
        ]
        if not self.is_symmetric:
            specs.append(TensorSpec("weight_zero_point", torch.int32, (-(-rows // per_word), num_groups)))
        return specs

    def scale_dtypes(self, dtype: torch.dtype) -> Sequence[torch.dtype]:
        return (scale_dtype(dtype),)

    def store(self, rounded: IntegerMatrix, dtype: torch.dtype) -> list[Tensor]:
        tensors = [
            pack_words(rounded.codes, self.bits),
            rounded.scale.to(dtype),
            torch.tensor(rounded.codes.shape, dtype=torch.int64),
        ]
        if not self.is_symmetric:
            tensors.append(pack_words_down(rounded.zero.to(torch.uint8), self.bits))
        return tensors


@dataclass(frozen=True, slots=True)
class FloatQuantized(Packing):
    """e4m3 with a scale a row; activations are rounded by token while the model runs."""

    def describe(self) -> str:
        return "compressed-tensors float-quantized, a scale a row, dynamic activations"

    def quantization_config(self) -> dict[str, object]:
        number = {"num_bits": 8, "type": "float", "symmetric": True}
        return _config(
            "float-quantized",
            {**number, "strategy": "channel", "dynamic": False},
            input_activations={**number, "strategy": "token", "dynamic": True},
        )

    def check(self, module: str, shape: tuple[int, int]) -> None:
        """See `Packing.check`: every matrix can be packed."""

    def specs(self, shape: tuple[int, int], dtype: torch.dtype) -> list[TensorSpec]:
        return [TensorSpec("weight", torch.float8_e4m3fn, shape), TensorSpec("weight_scale", dtype, (shape[0], 1))]

    def pack(self, matrix: Tensor) -> list[Tensor]:
        rounded = round_to_fp8(matrix, scale_dtype=scale_dtype(matrix.dtype))
        return [rounded.codes, rounded.scale.to(matrix.dtype)]


def _config(
    file_format: str, weights: dict[str, object], *, input_activations: dict[str, object] | None
) -> dict[str, object]:
    return {
        "quant_method": "compressed-tensors",
        "format": file_format,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": input_activations,
                "output_activations": None,
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }
