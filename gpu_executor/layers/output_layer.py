"""From vectors to the logits of all token ids, which ranks compute for parts of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from pagewire.checkpoint.model_config import ModelConfig

from ..kernels.draws import OutputRows
from ..kernels.layouts import LinearWeight
from .build_context import BuildContext
from .embedding import VocabEmbedding
from .weight_target import WeightTarget


class OutputLayer:
    """The logits of each token id: a product with one row an id, the embedding's or its own, scaled and bounded.

    Each rank multiplies by the rows that it holds; then all of them gather what the others have.

    Args:
        name: canonical name of the module, if it has a weight of its own.
        embedding: the input embedding.
        config: sizes; whether the embedding's rows are used; scale and bound of the logits.
        context: ops, quantization method, dtype, device and this rank's share.

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
        self._vocab_size = config.vocab_size

    @property
    def weight(self) -> LinearWeight:
        """This rank's rows, wherever they belong."""
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
        if self._rows.token_ids:
            logits = self._context.quant_method.apply(self.weight, hidden)
        else:
            logits = hidden.new_empty(hidden.shape[0], 0)
        logits = self._gather(logits, self._vocab_size)
        if self._is_bounded:
            return self._bound(logits, out)
        return logits.float() if out is None else out.copy_(logits)

    def choose(self, hidden: Tensor, num_drawable: int, kept_rows: Sequence[int]) -> OutputRows:
        """Find each row's best token; see `Ops.output_layer`.

        Returns:
            The kept logits as `forward` gives them; the best values scaled, but not bounded: one that is not finite, or
            whose scale takes it out of float32, shows.
        """
        mine = self._rows.token_ids
        num_mine = len(range(mine.start, min(mine.stop, num_drawable)))
        if num_mine:
            rows = self._context.ops.output_layer(hidden, self.weight, num_mine, kept_rows)
        else:  # an empty maximum, which any other rank's takes the place of
            kept = hidden.new_empty(len(kept_rows), 0, dtype=torch.float32) if kept_rows else None
            rows = OutputRows([-torch.inf] * hidden.shape[0], [0] * hidden.shape[0], kept)
        if self._context.ops.ranks.size > 1:
            rows = self._combine(rows, num_drawable, hidden.device)
        # Scale and bound keep the order of a row's logits, and so its best token, up to ties by rounding.
        best_values, logits = rows.best_values, rows.logits
        if self._scale != 1.0:
            best_values = torch.tensor(best_values).mul_(self._scale).tolist()
        if logits is not None and self._is_bounded:
            # Nobody else has these rows; but kernels write theirs without gaps, and some rows end before the padding.
            logits = self._bound(logits, logits if logits.is_contiguous() else None)
        return OutputRows(best_values, rows.best_ids, logits)

    def _gather(self, logits: Tensor, num_columns: int) -> Tensor:
        """Lay the ranks' columns side by side: [num_rows, this rank's] -> [num_rows, num_columns]."""
        ranks, width = self._context.ops.ranks, self._rows.max_rows
        if ranks.size == 1:
            return logits
        parts = ranks.gather(pad(logits, (0, width - logits.shape[1])))
        # All ranks but the last with a column have `width` of them.
        ends = (min(width, max(num_columns - rank * width, 0)) for rank in range(ranks.size))
        return torch.cat([part[:, :end] for part, end in zip(parts, ends, strict=True)], dim=1)

    def _combine(self, rows: OutputRows, num_drawable: int, device: torch.device) -> OutputRows:
        """Find the best of the ranks' best tokens, and gather what they keep: each rank gets the same."""
        ranks, first_id = self._context.ops.ranks, self._rows.token_ids.start
        # Of 64 bits, numbers hold float32 and token ids alike.
        mine = torch.tensor([rows.best_values, [first_id + row for row in rows.best_ids]], dtype=torch.float64)
        bests = torch.stack(ranks.gather(mine.to(device)))
        # The first of equals is the lowest id, as ranks hold ids in order; NaN is more than any number.
        values, winners = bests[:, 0].max(dim=0)
        ids = bests[:, 1].gather(0, winners.unsqueeze(0)).squeeze(0)
        logits = None if rows.logits is None else self._gather(rows.logits, num_drawable)
        return OutputRows(values.tolist(), ids.long().tolist(), logits)

    @property
    def _is_bounded(self) -> bool:
        return self._scale != 1.0 or self._soft_cap is not None

    def _bound(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        return self._context.ops.bound_logits(logits, self._scale, self._soft_cap, out)
