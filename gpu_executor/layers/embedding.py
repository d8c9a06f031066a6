"""The vocabulary at both ends of the model: ids to vectors, vectors to logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from pagewire.checkpoint.model_config import ModelConfig

from ..kernels.draws import OutputRows
from ..kernels.layouts import LinearWeight
from ..quantization.base import LinearShape
from .build_context import BuildContext
from .weight_target import WeightTarget


class VocabEmbedding:
    """One row a token id. The rows may double as the output layer's.

    Args:
        name: canonical name of the module.
        vocab_size: rows.
        hidden_size: channels of a row.
        context: ops, quantization method, dtype and device.
    """

    def __init__(self, name: str, vocab_size: int, hidden_size: int, context: BuildContext) -> None:
        self._name = name
        self._context = context
        self._shape = LinearShape(vocab_size, hidden_size, has_bias=False)
        self._loader = context.quant_method.create_weights(
            self._shape, dtype=context.weight_dtype, device=context.device
        )

    @property
    def weight(self) -> LinearWeight:
        """The loaded rows, as kernels want them."""
        return self._loader.weight

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this layer."""
        loader = self._loader
        yield WeightTarget(
            name=f"{self._name}.weight",
            shape=(self._shape.out_features, self._shape.in_features),
            load=lambda tensor: loader.load_rows(0, tensor),
            loaded_bytes=loader.loaded_bytes,
        )


class OutputLayer:
    """The logits of each token id: a product with one row an id, the embedding's or its own, scaled and bounded.

    Args:
        name: canonical name of the module, if it has a weight of its own.
        embedding: the input embedding.
        config: sizes; whether the embedding's rows are used; scale and bound of the logits.
        context: ops, quantization method, dtype and device.

    Attributes:
        is_tied: the rows are the embedding's.
    """

    def __init__(self, name: str, embedding: VocabEmbedding, config: ModelConfig, context: BuildContext) -> None:
        self._name = name
        self._context = context
        self._scale = config.logit_scale
        self._soft_cap = config.logit_soft_cap
        self.is_tied = config.tie_word_embeddings
        self._rows = embedding
        if not self.is_tied:
            self._rows = VocabEmbedding(name, config.vocab_size, config.hidden_size, context)

    @property
    def weight(self) -> LinearWeight:
        """The rows, wherever they belong."""
        return self._rows.weight

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this layer: nothing if it is tied."""
        if not self.is_tied:
            yield from self._rows.weight_targets()

    @property
    def modules(self) -> tuple[str, ...]:
        """Canonical name of the module, if it has a weight of its own."""
        return () if self.is_tied else (self._name,)

    def forward(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Multiply [num_rows, hidden_size] to [num_rows, vocab_size] float32, written to `out` if it is given."""
        logits = self._context.quant_method.apply(self.weight, hidden)
        if self._is_bounded:
            return self._bound(logits, out)
        return logits.float() if out is None else out.copy_(logits)

    def choose(self, hidden: Tensor, num_drawable: int, kept_rows: Sequence[int]) -> OutputRows:
        """Find each row's best token; see `Ops.output_layer`.

        Returns:
            The kept logits as `forward` gives them; the best values as the product gives them, so that one that is not
            finite still is not behind a bound.
        """
        rows = self._context.ops.output_layer(hidden, self.weight, num_drawable, kept_rows)
        # Scale and bound keep the order of a row's logits, and so its best token, up to ties by rounding.
        if rows.logits is None or not self._is_bounded:
            return rows
        # Nobody else has these rows; but kernels write theirs without gaps, and some rows end before the padding.
        out = rows.logits if rows.logits.is_contiguous() else None
        return OutputRows(rows.best_values, rows.best_ids, self._bound(rows.logits, out))

    @property
    def _is_bounded(self) -> bool:
        return self._scale != 1.0 or self._soft_cap is not None

    def _bound(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        return self._context.ops.bound_logits(logits, self._scale, self._soft_cap, out)
