"""AWQ's file format, in its GEMM order: for comparisons, as the weights are only rounded and not scaled by activations.

Source: https://github.com/mit-han-lab/llm-awq and https://github.com/casper-hansen/AutoAWQ (8 output channels a word,
in the order 0 2 4 6 1 3 5 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pagewire.gpu_executor.formats.quantized.integer_matrix import IntegerMatrix
from pagewire.gpu_executor.formats.writing.packing import (
    IntegerPacking,
    TensorSpec,
    check_groups,
    pack_words,
    scale_dtype,
)
from pagewire.ipc.errors import ConfigError

_PER_WORD = 8
# The output channel, of a word's eight, that lies in each nibble, the lowest first.
_CHANNEL_OF_NIBBLE = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class AWQPacking(IntegerPacking):
    """`qweight`, `qzeros` and `scales`, 4 bits, with zero points.

    Attributes:
        group_size: input channels that share a scale and a zero point.
    """

    group_size: int
    bits: int = field(default=4, init=False)
    is_symmetric: bool = field(default=False, init=False)

    def describe(self) -> str:
        return f"awq, groups of {self.group_size}"

    def quantization_config(self) -> dict[str, object]:
        return {
            "quant_method": "awq",
            "bits": 4,
            "group_size": self.group_size,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": None,
        }

    def check(self, module: str, shape: tuple[int, int]) -> None:
        if shape[0] % _PER_WORD:
            raise ConfigError(f"{module}: awq packs {_PER_WORD} output channels a word, and it has {shape[0]}.")
        check_groups(module, shape[1], self.group_size)

    def specs(self, shape: tuple[int, int], dtype: torch.dtype) -> list[TensorSpec]:
        rows, columns = shape
        num_groups = columns // self.group_size
        return [
            TensorSpec("qweight", torch.int32, (columns, rows // _PER_WORD)),
            TensorSpec("qzeros", torch.int32, (num_groups, rows // _PER_WORD)),
            TensorSpec("scales", torch.float16, (num_groups, rows)),
        ]

    def scale_dtypes(self, dtype: torch.dtype) -> Sequence[torch.dtype]:
        return (scale_dtype(dtype), torch.float16)

    def store(self, rounded: IntegerMatrix, dtype: torch.dtype) -> list[Tensor]:
        return [
            _pack(rounded.codes.t()),
            _pack(rounded.zero.t().to(torch.uint8)),
            rounded.scale.t().to(torch.float16).contiguous(),
        ]


def _pack(codes: Tensor) -> Tensor:
    """[rows, channels] uint8 -> [rows, channels / 8] int32."""
    words = codes.reshape(codes.shape[0], -1, _PER_WORD)[:, :, list(_CHANNEL_OF_NIBBLE)]
    return pack_words(words.reshape(codes.shape[0], -1), 4)
