"""Log probabilities as they are reported: of the model's own distribution, whatever processors and filters do later."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from pagewire.ipc.errors import EngineError
from pagewire.ipc.outputs import TokenLogprobs

from ..kernels.sampling_ops import SamplingOps

LOGITS_NOT_FINITE = (
    "The model's logits for this request are not finite (NaN or infinite); try --dtype float32, and --kv-cache-dtype "
    "float32 if its keys or values exceed float16."
)


def token_logprobs(ops: SamplingOps, logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """Return the logprob and rank of some tokens under one row, each beside the row's alternatives.

    Args:
        ops: computes them.
        logits: [vocab_size] float32, contiguous, the largest finite.
        token_ids: the tokens.
        num_top: alternatives to report per token; -1 for the whole vocabulary.
    """
    row = ops.logprobs(logits, token_ids, num_top)
    return [
        TokenLogprobs(
            token_id=token_id,
            logprob=logprob,
            rank=rank,
            top_token_ids=row.top_token_ids,
            top_logprobs=row.top_logprobs,
        )
        for token_id, logprob, rank in zip(token_ids, row.logprobs, row.ranks, strict=True)
    ]


def prompt_token_logprobs(
    ops: SamplingOps, logits: Tensor, next_token_ids: Sequence[int], num_top: int
) -> list[TokenLogprobs]:
    """Return the logprob of each prompt token under the row before it.

    Args:
        ops: computes them.
        logits: [num_rows, vocab_size] float32, one row for each position.
        next_token_ids: the prompt token that follows each position.
        num_top: alternatives to report per token; -1 for the whole vocabulary.

    Raises:
        EngineError: a row is NaN or infinite.
    """
    reports: list[TokenLogprobs] = []
    for row, token_id in zip(logits.contiguous().unbind(), next_token_ids, strict=True):
        largest, _ = ops.argmax(row)
        if not math.isfinite(largest):
            raise EngineError(LOGITS_NOT_FINITE)
        reports += token_logprobs(ops, row, [token_id], num_top)
    return reports
