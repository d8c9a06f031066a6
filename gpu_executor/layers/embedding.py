"""The vocabulary's rows at either end of the model."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..formats.tensor_part import WHOLE_TENSOR, TensorPart
from ..kernels.layouts import DenseWeight, LinearWeight
from ..quantization.base import LinearShape
from .build_context import BuildContext
from .weight_target import WeightTarget


class VocabEmbedding:
    """One row a token id, which ranks divide in order. The rows may double as the output layer's.

    Args:
        name: canonical name of the module.
        vocab_size: rows, of all ranks.
        hidden_size: channels of a row.
        context: ops, quantization method, dtype, device and this rank's share.

    Attributes:
        token_ids: whose rows this rank holds. The last ranks may have fewer than the others, or none.
        max_rows: rows of the rank that has most, the first.
    """

    def __init__(self, name: str, vocab_size: int, hidden_size: int, context: BuildContext) -> None:
        self.token_ids = context.share.of_uneven(vocab_size)
        self.max_rows = -(-vocab_size // context.share.size)
        self._name = name
        self._context = context
        self._shape = (vocab_size, hidden_size)
        self._loader = context.quant_method.create_weights(
            LinearShape(len(self.token_ids), hidden_size, has_bias=False),
            dtype=context.weight_dtype,
            device=context.device,
        )

    @property
    def weight(self) -> LinearWeight:
        """The loaded rows, as kernels want them; a matrix without rows where this rank has none."""
        if not self.token_ids:
            return DenseWeight(torch.empty(0, self._shape[1], dtype=self._context.dtype, device=self._context.device))
        return self._loader.weight

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this layer."""
        loader, is_whole = self._loader, len(self.token_ids) == self._shape[0]
        yield WeightTarget(
            name=f"{self._name}.weight",
            shape=self._shape,
            load=lambda tensor: loader.load_rows(0, tensor),
            loaded_bytes=loader.loaded_bytes,
            part=WHOLE_TENSOR if is_whole else TensorPart(rows=(self.token_ids,)),
            is_elsewhere=self._context.is_elsewhere or not self.token_ids,
        )
