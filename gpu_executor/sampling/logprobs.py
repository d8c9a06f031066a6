"""Log probabilities as they are reported: of the model's own distribution, whatever processors and filters do later."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pagewire.ipc.errors import EngineError
from pagewire.ipc.outputs import TokenLogprobs

from ..kernels.reference.reductions import fixed_order_sum
from ..kernels.reference.token_order import best_indices, rank_of

LOGITS_NOT_FINITE = (
    "The model's logits for this request are not finite (NaN or infinite); try --dtype float32, and --kv-cache-dtype "
    "float32 if its keys or values exceed float16."
)


class RowLogprobs:
    """The distribution of one row of raw logits, ready to be asked for tokens.

    The normaliser is one float64 number summed in a fixed order, so a logprob's bits depend on its row alone
    (torch.log_softmax picks its order by shape and thread count).

    Args:
        logits: [vocab_size] float32; not edited by anyone later.
        num_top: alternatives to report per token; -1 for the whole vocabulary.

    Raises:
        EngineError: the logits are NaN or infinite.
    """

    def __init__(self, logits: Tensor, num_top: int) -> None:
        self._logits = logits
        largest = logits.max()
        if not math.isfinite(largest):
            raise EngineError(LOGITS_NOT_FINITE)
        total = float(fixed_order_sum((logits - largest).exp_().to(torch.float64)))
        self._normalizer = float(largest) + math.log(total)
        self._top_token_ids: list[int] = []
        if num_top:
            best = best_indices(logits, logits.shape[0] if num_top < 0 else num_top)
            self._top_token_ids = best.tolist()
            self._top_logprobs = self._logprobs_of(best)
        else:
            self._top_logprobs = []

    def of(self, token_id: int) -> TokenLogprobs:
        """Return one token's logprob, its rank and the row's alternatives."""
        (logprob,) = self._logprobs_of(torch.tensor([token_id], device=self._logits.device))
        return TokenLogprobs(
            token_id=token_id,
            logprob=logprob,
            rank=rank_of(self._logits, token_id),
            top_token_ids=self._top_token_ids,
            top_logprobs=self._top_logprobs,
        )

    def _logprobs_of(self, token_ids: Tensor) -> list[float]:
        values: list[float] = (
            self._logits[token_ids].to(torch.float64).sub_(self._normalizer).to(torch.float32).tolist()
        )
        return values


def prompt_token_logprobs(logits: Tensor, next_token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """Return the logprob of each prompt token under the row before it.

    Args:
        logits: [num_rows, vocab_size] float32, one row for each position.
        next_token_ids: the prompt token that follows each position.
        num_top: alternatives to report per token; -1 for the whole vocabulary.

    Raises:
        EngineError: a row is NaN or infinite.
    """
    return [RowLogprobs(row, num_top).of(token_id) for row, token_id in zip(logits, next_token_ids, strict=True)]
