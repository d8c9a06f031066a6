"""From rows of logits to tokens: processors, then the most likely token, or a draw among the filtered ones.

Nothing here carries state from step to step, and no row looks at another: a draw is a function of the row's logits,
its tokens so far, its parameters and its noise key. A greedy row without processors is done when the output layer is,
and a row pays only for what it asks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pagewire.ipc.errors import EngineError, InvalidRequest
from pagewire.ipc.outputs import TokenLogprobs

from ..kernels.draws import DrawRow, NoiseKey, OutputRows
from ..kernels.sampling_ops import SamplingOps
from ..models.base import Model
from .draw import Draw, Drawn
from .logits_processors import edits_of
from .logprobs import LOGITS_NOT_FINITE, prompt_token_logprobs, token_logprobs
from .pending import FinishedDraws, PendingDraws
from .row_edits import apply_edits
from .token_masks import FetchMasks, TokenMask, keep_allowed

NOTHING_LEFT = (
    "No token is left to draw: allowed_token_ids, bad_words, min_tokens, logit_bias and the grammar of "
    "structured_outputs together exclude every token of the vocabulary. Loosen one of them."
)


class Sampler:
    """Draws tokens.

    Args:
        vocab_size: ids that can be drawn, the tokenizer's size: logits from there on belong to rows that only pad the
            embedding, and count as -inf everywhere.
        ops: finds best tokens and draws.
    """

    def __init__(self, vocab_size: int, ops: SamplingOps) -> None:
        self._vocab_size = vocab_size
        self._ops = ops

    @property
    def vocab_size(self) -> int:
        """Ids that can be drawn."""
        return self._vocab_size

    def begin(
        self,
        model: Model,
        hidden: Tensor,
        draws: Sequence[Draw],
        logits: Tensor | None = None,
        fetch_masks: FetchMasks | None = None,
    ) -> PendingDraws:
        """See `Drawing.begin`; the draws are done when it returns."""
        assert logits is None, "graphs that compute logits are captured where draws are made on the device"
        kept_rows = [i for i, draw in enumerate(draws) if draw.needs_logits]
        output = model.choose_tokens(hidden, self._vocab_size, kept_rows)
        # Only now: the core makes the masks while this step's logits are computed.
        return FinishedDraws(self.sample(output, draws, None if fetch_masks is None else fetch_masks()))

    def sample(
        self, output: OutputRows, draws: Sequence[Draw], masks: Sequence[TokenMask | None] | None = None
    ) -> list[Drawn]:
        """Draw for every row.

        Args:
            output: the rows' best tokens, and the logits of those whose `needs_logits` is set; not modified.
            draws: one a row.
            masks: one a row; None if no row is masked.

        Returns:
            One a row, in order.
        """
        kept = iter(()) if output.logits is None else iter(output.logits.unbind())
        results: list[Drawn] = []
        by_chance: list[tuple[Drawn, DrawRow]] = []
        reported: list[tuple[Drawn, Tensor, int]] = []
        of_draws = [None] * len(draws) if masks is None else masks
        for best_value, best_id, draw, mask in zip(output.best_values, output.best_ids, draws, of_draws, strict=True):
            raw = next(kept) if draw.needs_logits else None
            if not math.isfinite(best_value):
                result = Drawn(error=EngineError(LOGITS_NOT_FINITE).to_info())
            elif raw is None:
                result = Drawn([best_id] * draw.num_draws)
            else:
                result = self._begin(raw, best_id, draw, mask, by_chance)
                num_logprobs = draw.row_sampling.sampling.num_logprobs
                if num_logprobs is not None and result.error is None:
                    reported.append((result, raw, num_logprobs))
            results.append(result)
        if by_chance:
            token_ids = self._ops.draw([row for _, row in by_chance])
            for (result, _), drawn_ids in zip(by_chance, token_ids, strict=True):
                result.token_ids = drawn_ids
        for result, raw, num_logprobs in reported:
            result.logprobs = token_logprobs(self._ops, raw, result.token_ids, num_logprobs)
        return results

    def prompt_logprobs(self, logits: Tensor, next_token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
        """Return the logprob of each prompt token under the row before it.

        Args:
            logits: [num_rows, at least vocab_size], any float dtype.
            next_token_ids: one a row.
            num_top: alternatives to report per token; -1 for the whole vocabulary.

        Raises:
            EngineError: a row is NaN or infinite.
        """
        drawable = logits[:, : self._vocab_size].to(torch.float32)
        return prompt_token_logprobs(self._ops, drawable, next_token_ids, num_top)

    def _begin(
        self, raw: Tensor, best_id: int, draw: Draw, mask: TokenMask | None, by_chance: list[tuple[Drawn, DrawRow]]
    ) -> Drawn:
        """Process one row of raw logits whose best token is known; what is left to chance is added to `by_chance`."""
        row_sampling, history, logits = draw.row_sampling, draw.history, raw
        assert history is not None, "a row that needs its logits comes with its tokens"
        if row_sampling.processors or mask is not None:
            # Logprobs are of the raw ones.
            logits = raw.clone() if mask is None else keep_allowed(raw, mask)
            if row_sampling.processors:
                apply_edits(logits, edits_of(row_sampling.processors, history), history)
            best_value, best_id = self._ops.argmax(logits)
            if best_value == -math.inf:
                return Drawn(error=InvalidRequest(NOTHING_LEFT).to_info())
            if not math.isfinite(best_value):
                return Drawn(error=EngineError(LOGITS_NOT_FINITE).to_info())
        if row_sampling.temperature is None:
            return Drawn([best_id] * draw.num_draws)
        result = Drawn()
        key = NoiseKey(row_sampling.sampling.seed, row_sampling.child, history.num_output_tokens)
        row = DrawRow(logits.contiguous(), row_sampling.temperature, row_sampling.filters, key, draw.num_draws)
        by_chance.append((result, row))
        return result
