"""Linear layers of GPTQ checkpoints.

    qweight [in_features * bits / 32, out_features] int32: codes packed along input channels, lowest bits first
    qzeros  [num_groups, out_features * bits / 32] int32: zero points packed along output channels
    scales  [num_groups, out_features] float
    g_idx   [in_features] int32: the group of each input channel; without it groups are runs of channels

Zero points are stored less 1 in the first version of the format, as they are in the second. Symmetric checkpoints are
found that call themselves the first and are the second: there the stored number itself tells, as it can be but one.

Source: GPTQ, Frantar et al. 2022 (arXiv 2210.17323), as AutoGPTQ and GPTQModel store it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pagewire.checkpoint.quantization.schemes import GPTQScheme
from pagewire.ipc.errors import ConfigError

from ..safetensors import SafetensorsTensor
from ..tensor_part import TensorPart
from .bit_packing import unpack_columns, unpack_rows, words_of
from .module_parts import ModuleParts, check_dtype, check_shape
from .packed_tensor import IntegerTensor, of_each_run
from .scales import check_matrix, check_order, read_groups, read_scale

logger = logging.getLogger(__name__)

# What every code of a word is raised by, by bits.
_ONE_EACH = {4: 0x11111111, 8: 0x01010101}


def read_gptq(parts: ModuleParts, scheme: GPTQScheme) -> GPTQTensor:
    """Put a layer together from the tensors of its module; see `GPTQTensor`."""
    return GPTQTensor(parts, scheme)


class GPTQTensor(IntegerTensor):
    """The weight of a GPTQ layer.

    Args:
        parts: the tensors of the layer, of which this takes its own.
        scheme: how they are packed.

    Raises:
        ConfigError: if one is missing, or has another type or shape than the scheme says.
    """

    def __init__(self, parts: ModuleParts, scheme: GPTQScheme) -> None:
        qweight, qzeros, scales = parts.take("qweight"), parts.take("qzeros"), parts.take("scales")
        group_index = parts.take_optional("g_idx")
        codes_per_word = 32 // scheme.bits
        num_words, out_features = check_matrix(qweight)
        in_features = num_words * codes_per_word
        num_groups = math.ceil(in_features / (scheme.group_size or in_features or 1))
        check_dtype(qweight, "I32")
        check_dtype(qzeros, "I32")
        check_dtype(scales, "F16", "BF16", "F32")
        check_shape(scales, (num_groups, out_features))
        check_shape(qzeros, (num_groups, math.ceil(out_features / codes_per_word)))
        if group_index is not None:
            check_order(group_index, in_features)
        super().__init__(parts.module, qweight.source, (out_features, in_features), scheme.bits, scheme.group_size)
        self._scheme = scheme
        self._qweight = qweight
        self._qzeros = qzeros
        self._scales = scales
        self._group_index = group_index

    def read_group_of(self) -> Tensor:
        """See `IntegerTensor.read_group_of`."""
        return read_groups(self._group_index, self._whole_shape[1], self._group_size, self._scales.shape[0])

    def read_codes(self, rows: Sequence[range], columns: range) -> Tensor:
        """See `IntegerTensor.read_codes`."""
        words = words_of(columns, self._bits)

        def read(run: range) -> Tensor:
            stored = self._qweight.sliced(TensorPart((words.run,), run)).read()
            return words.cut(unpack_columns(stored, self._bits))

        return of_each_run(read, rows)

    def read_scale_and_zero(self, rows: Sequence[range], groups: range) -> tuple[Tensor, Tensor]:
        """See `IntegerTensor.read_scale_and_zero`."""
        zeros = self._read_zeros().t()[:, groups.start : groups.stop].float()

        def read(run: range) -> Tensor:
            return read_scale(self._scales.sliced(TensorPart((groups,), run))).t().contiguous()

        return of_each_run(read, rows), of_each_run(lambda run: zeros[run.start : run.stop].contiguous(), rows)

    def _read_zeros(self) -> Tensor:
        """Return the zero points of the whole weight, which are checked together, [num_groups, out_features] uint8."""
        scheme, words = self._scheme, self._qzeros.read()
        out_features = self._whole_shape[0]
        stored = unpack_rows(words, scheme.bits)[:, :out_features]
        offset = scheme.zero_offset
        if scheme.is_symmetric:
            offset = _symmetric_offset(stored, scheme, self._qzeros)
        if offset is None:
            offset = 1  # what there was before checkpoints said it
        if offset == 0:
            return stored
        # Tools subtract 1 from every zero point by one subtraction from the whole word, whose borrows (of a zero point
        # of 0) go to the next one: the sum of the whole word takes them back. It may wrap around.
        return unpack_rows(words + _ONE_EACH[scheme.bits], scheme.bits)[:, :out_features]


def _symmetric_offset(stored: Tensor, scheme: GPTQScheme, qzeros: SafetensorsTensor) -> int:
    """Return what the stored zero points of a symmetric layer lack of half the range.

    Args:
        stored: [num_groups, out_features] uint8.
        scheme: of the layer.
        qzeros: the tensor that holds them, for messages.

    Raises:
        ConfigError: if they are neither half the range nor one less, everywhere.
    """
    half = 1 << (scheme.bits - 1)
    lowest, highest = (int(bound) for bound in torch.aminmax(stored))
    offset = half - lowest
    if lowest != highest or offset not in (0, 1):
        held = str(lowest) if lowest == highest else f"{lowest} to {highest}"
        raise ConfigError(
            f"{qzeros.source}: holds zero points of {held}; the checkpoint's quantization_config says that it is "
            f"symmetric (sym), whose zero points are stored as {half - 1} (gptq) or {half} (gptq_v2). If it is not "
            "symmetric, its sym must be false."
        )
    if scheme.zero_offset not in (None, offset):
        logger.warning(
            "%s: holds zero points of %d, which is the format %s and not the one that quantization_config states; "
            "they are read by what they are",
            qzeros.source,
            lowest,
            "gptq" if offset else "gptq_v2",
        )
    return offset
