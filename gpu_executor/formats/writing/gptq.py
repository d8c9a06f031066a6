"""GPTQ's file format, first version: what most GPTQ checkpoints have.

Source: https://github.com/AutoGPTQ/AutoGPTQ (codes and zero points packed along columns, zero points stored less 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pagewire.ipc.errors import ConfigError

from ..quantized.integer_matrix import IntegerMatrix
from .packing import IntegerPacking, TensorSpec, check_groups, pack_words, pack_words_down, scale_dtype


@dataclass(frozen=True, slots=True)
class GPTQPacking(IntegerPacking):
    """`qweight`, `qzeros`, `scales` and `g_idx`, symmetric: the fast kernels of other engines take no zero points.

    Attributes:
        bits: 4 or 8.
        group_size: input channels that share a scale; None: a row.
    """

    bits: int
    group_size: int | None
    is_symmetric: bool = field(default=True, init=False)

    def describe(self) -> str:
        groups = "rows" if self.group_size is None else f"groups of {self.group_size}"
        return f"gptq, {groups}, symmetric"

    def quantization_config(self) -> dict[str, object]:
        return {
            "quant_method": "gptq",
            "bits": self.bits,
            "group_size": -1 if self.group_size is None else self.group_size,
            "sym": True,
            "desc_act": False,
            "lm_head": False,
            "checkpoint_format": "gptq",
        }

    def check(self, module: str, shape: tuple[int, int]) -> None:
        rows, columns = shape
        per_word = 32 // self.bits
        if rows % per_word or columns % per_word:
            raise ConfigError(
                f"{module}: gptq packs {per_word} channels a word, which {rows} x {columns} is no multiple of; give "
                "--format compressed-tensors."
            )
        check_groups(module, columns, self.group_size)

    def specs(self, shape: tuple[int, int], dtype: torch.dtype) -> list[TensorSpec]:
        rows, columns = shape
        per_word = 32 // self.bits
        num_groups = 1 if self.group_size is None else columns // self.group_size
        return [
            TensorSpec("qweight", torch.int32, (columns // per_word, rows)),
            TensorSpec("qzeros", torch.int32, (num_groups, rows // per_word)),
            TensorSpec("scales", torch.float16, (num_groups, rows)),
            TensorSpec("g_idx", torch.int32, (columns,)),
        ]

    def scale_dtypes(self, dtype: torch.dtype) -> Sequence[torch.dtype]:
        return (scale_dtype(dtype), torch.float16)

    def store(self, rounded: IntegerMatrix, dtype: torch.dtype) -> list[Tensor]:
        stored_zeros = rounded.zero.t().sub(1).to(torch.uint8)
        return [
            pack_words_down(rounded.codes.t(), self.bits),
            pack_words(stored_zeros, self.bits),
            rounded.scale.t().to(torch.float16).contiguous(),
            rounded.group_of.to(torch.int32),
        ]
