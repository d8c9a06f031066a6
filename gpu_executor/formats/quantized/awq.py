"""Linear layers of AWQ checkpoints in the GEMM order.

    qweight [in_features, out_features / 8] int32: eight output channels a word
    qzeros  [num_groups, out_features / 8] int32: zero points, likewise
    scales  [num_groups, out_features] float

Source: AWQ, Lin et al. 2023 (arXiv 2306.00978), as AutoAWQ stores it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pagewire.checkpoint.quantization.schemes import AWQScheme

from ..safetensors import SafetensorsTensor
from ..tensor_part import TensorPart
from .bit_packing import CHUNK_WORDS, words_of
from .integer_matrix import even_groups
from .module_parts import ModuleParts, check_dtype, check_shape
from .packed_tensor import IntegerTensor, of_each_run
from .scales import check_matrix, read_scale

_BITS = 4
_CODES_PER_WORD = 8
# The output channel, of a word's eight, whose code is in each four bits of it, lowest first.
_CHANNEL_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def read_awq(parts: ModuleParts, scheme: AWQScheme) -> AWQTensor:
    """Put a layer together from the tensors of its module; see `AWQTensor`."""
    return AWQTensor(parts, scheme)


class AWQTensor(IntegerTensor):
    """The weight of an AWQ layer.

    Args:
        parts: the tensors of the layer, of which this takes its own.
        scheme: how they are packed.

    Raises:
        ConfigError: if one is missing, or has another type or shape than the scheme says.
    """

    def __init__(self, parts: ModuleParts, scheme: AWQScheme) -> None:
        qweight, qzeros, scales = parts.take("qweight"), parts.take("qzeros"), parts.take("scales")
        in_features, num_words = check_matrix(qweight)
        num_groups = math.ceil(in_features / (scheme.group_size or in_features or 1))
        check_dtype(qweight, "I32")
        check_dtype(qzeros, "I32")
        check_dtype(scales, "F16", "BF16", "F32")
        check_shape(scales, (num_groups, num_words * _CODES_PER_WORD))
        check_shape(qzeros, (num_groups, num_words))
        super().__init__(
            parts.module, qweight.source, (num_words * _CODES_PER_WORD, in_features), _BITS, scheme.group_size
        )
        self._qweight = qweight
        self._qzeros = qzeros
        self._scales = scales

    def read_group_of(self) -> Tensor:
        """See `IntegerTensor.read_group_of`."""
        return even_groups(self._whole_shape[1], self._group_size)

    def read_codes(self, rows: Sequence[range], columns: range) -> Tensor:
        """See `IntegerTensor.read_codes`."""
        return of_each_run(lambda run: _read_run(self._qweight, run, columns), rows)

    def read_scale_and_zero(self, rows: Sequence[range], groups: range) -> tuple[Tensor, Tensor]:
        """See `IntegerTensor.read_scale_and_zero`."""

        def read(run: range) -> Tensor:
            return read_scale(self._scales.sliced(TensorPart((groups,), run))).t().contiguous()

        zero = of_each_run(lambda run: _read_run(self._qzeros, run, groups), rows)
        return of_each_run(read, rows), zero.float()


def _read_run(words: SafetensorsTensor, channels: range, rows: range) -> Tensor:
    """Read the codes of some output channels in some of a tensor's rows, [channels, rows] uint8."""
    held = words_of(channels, _BITS)
    return _unpack(words.sliced(TensorPart((rows,), held.run)).read())[held.codes]


def _unpack(words: Tensor) -> Tensor:
    """[num_rows, num_words] int32 -> [num_words * 8, num_rows] uint8: an output channel a row."""
    num_rows, num_words = words.shape
    codes = torch.empty(num_words, _CODES_PER_WORD, num_rows, dtype=torch.uint8)
    step = max(CHUNK_WORDS // max(num_rows, 1), 1)
    for begin in range(0, num_words, step):
        # A copy in any case: a matrix of one row counts as contiguous whichever way it is turned.
        chunk = words[:, begin : begin + step].t().clone(memory_format=torch.contiguous_format)
        # The bytes of a word lie in its order: every platform that torch runs on is little-endian.
        stored = chunk.view(torch.uint8).view(*chunk.shape, 4)
        for position, channel in enumerate(_CHANNEL_ORDER):
            nibbles = stored[:, :, position // 2]
            codes[begin : begin + step, channel] = nibbles >> 4 if position % 2 else nibbles & 0x0F
    return codes.view(num_words * _CODES_PER_WORD, num_rows)
