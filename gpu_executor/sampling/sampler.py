"""From rows of logits to tokens: processors, then the most likely token, or a draw among the filtered ones.

Nothing here carries state from step to step, and no row looks at another: a draw is a function of the row's logits,
its tokens so far, its parameters and its noise key. A batch of greedy rows without processors is one max over its
logits, and a row pays only for what it asks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pagewire.ipc.errors import EngineError, ErrorInfo, InvalidRequest
from pagewire.ipc.outputs import TokenLogprobs
from pagewire.ipc.sampling_params import GREEDY_BELOW, MIN_TEMPERATURE, Sampling

from .filters import Filters
from .logits_processors import LogitsProcessor, TokenHistory, apply_processors, make_processors
from .logprobs import LOGITS_NOT_FINITE, RowLogprobs
from .noise import gumbel_noise

_NOTHING_TO_DRAW = (
    "No token is left to draw: allowed_token_ids, bad_words, min_tokens and logit_bias together exclude every token of "
    "the vocabulary. Loosen one of them."
)


@dataclass(frozen=True, slots=True)
class RowSampling:
    """A request's parameters made ready for its draws, once, when its row enters the batch.

    Attributes:
        sampling: as they came; read for logprobs and the seed.
        child: half of the noise key.
        temperature: None for greedy.
    """

    sampling: Sampling
    child: int
    temperature: float | None
    filters: Filters
    processors: tuple[LogitsProcessor, ...]

    @classmethod
    def prepare(cls, sampling: Sampling, child: int, vocab_size: int) -> RowSampling:
        """Make the parameters ready.

        Args:
            sampling: the request's parameters, ids in range.
            child: which child of its request.
            vocab_size: ids that can be drawn.
        """
        is_greedy = sampling.temperature < GREEDY_BELOW
        return cls(
            sampling=sampling,
            child=child,
            # logits / temperature must stay finite in fp32, whoever sent the request.
            temperature=None if is_greedy else max(sampling.temperature, MIN_TEMPERATURE),
            filters=Filters(top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p),
            processors=make_processors(sampling, vocab_size),
        )


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row of logits is asked for.

    Attributes:
        row_sampling: the request's parameters.
        history: the tokens before the draw.
        num_draws: draws from this one row: for children row_sampling.child, +1, ...
    """

    row_sampling: RowSampling
    history: TokenHistory
    num_draws: int = 1


@dataclass(slots=True)
class Drawn:
    """What one row of logits gave: a token (and its logprobs, if asked for) a draw, or the reason for none."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: ErrorInfo | None = None


class Sampler:
    """Draws tokens.

    Args:
        vocab_size: ids that can be drawn, the tokenizer's size: logits from there on belong to rows that only pad the
            embedding, and count as -inf everywhere.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    @property
    def vocab_size(self) -> int:
        """Ids that can be drawn."""
        return self._vocab_size

    def sample(self, logits: Tensor, draws: Sequence[Draw]) -> list[Drawn]:
        """Draw for every row.

        Args:
            logits: [num_rows, at least vocab_size], any float dtype; not modified.
            draws: one a row.

        Returns:
            One a row, in order.
        """
        raw = self.drawable(logits)
        best_values, best_ids = raw.max(dim=-1)
        bests = zip(best_values.tolist(), best_ids.tolist(), strict=True)
        return [_draw_row(row, draw, *best) for row, draw, best in zip(raw, draws, bests, strict=True)]

    def drawable(self, logits: Tensor) -> Tensor:
        """Return the logits of the ids that can be drawn, in float32: [num_rows, vocab_size]."""
        return logits[:, : self._vocab_size].to(torch.float32)


def _draw_row(raw: Tensor, draw: Draw, best_value: float, best_id: int) -> Drawn:
    """Draw from one row of raw logits, whose largest value and its first id are known."""
    if not math.isfinite(best_value):
        return Drawn(error=EngineError(LOGITS_NOT_FINITE).to_info())
    row_sampling, logits = draw.row_sampling, raw
    if row_sampling.processors:
        logits = raw.clone()  # logprobs are of the raw ones
        apply_processors(logits, row_sampling.processors, draw.history)
        value, index = logits.max(dim=-1)
        if float(value) == -math.inf:
            return Drawn(error=InvalidRequest(_NOTHING_TO_DRAW).to_info())
        best_id = int(index)
    if row_sampling.temperature is None:
        token_ids = [best_id] * draw.num_draws
    else:
        token_ids = _draw_tokens(logits, draw, row_sampling.temperature)
    return Drawn(token_ids=token_ids, logprobs=_report(raw, token_ids, draw))


def _draw_tokens(logits: Tensor, draw: Draw, temperature: float) -> list[int]:
    """Draw from one row: argmax(logits / temperature + Gumbel noise) over the tokens that the filters leave."""
    sampling = draw.row_sampling.sampling
    # Row by row on contiguous tensors: a call's shape and alignment then depend on the row alone.
    scores = logits.contiguous() / temperature
    candidates = draw.row_sampling.filters.candidates(scores)
    weights = (scores if candidates is None else scores[candidates]).to(torch.float64)
    token_ids = []
    for offset in range(draw.num_draws):
        noise = gumbel_noise(
            seed=sampling.seed,
            child=draw.row_sampling.child + offset,
            position=draw.history.num_output_tokens,
            vocab_size=scores.shape[0],
            token_ids=candidates,
            device=scores.device,
        )
        best = int((weights + noise).argmax())
        token_ids.append(best if candidates is None else int(candidates[best]))
    return token_ids


def _report(raw: Tensor, token_ids: Sequence[int], draw: Draw) -> list[TokenLogprobs]:
    num_logprobs = draw.row_sampling.sampling.num_logprobs
    if num_logprobs is None:
        return []
    row = RowLogprobs(raw, num_logprobs)
    return [row.of(token_id) for token_id in token_ids]
