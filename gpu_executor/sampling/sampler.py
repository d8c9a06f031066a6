"""From rows of logits to tokens: processors, then the most likely token, or a draw among the filtered ones.

Nothing here carries state from step to step, and no row looks at another: a draw is a function of the row's logits,
its tokens so far, its parameters and its noise key. A batch of greedy rows without processors is one max over its
logits, and a row pays only for what it asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from pagewire.ipc.errors import EngineError, ErrorInfo, InvalidRequest
from pagewire.ipc.outputs import TokenLogprobs
from pagewire.ipc.sampling_params import GREEDY_BELOW, MIN_TEMPERATURE, Sampling

from .filters import Filters
from .logits_processors import LogitsProcessor, TokenHistory, apply_processors, make_processors
from .logprobs import LOGITS_NOT_FINITE, RowLogprobs
from .noise import NoiseKey, gumbel_noise, gumbel_noise_of_vocabulary

_NOTHING_TO_DRAW = (
    "No token is left to draw: allowed_token_ids, bad_words, min_tokens and logit_bias together exclude every token of "
    "the vocabulary. Loosen one of them."
)

# Candidates whose noise is made in one run; each takes some hundred bytes meanwhile. Draws are grouped, not rows: 64
# draws from one row of 49,152 took 730 MB at once, and three times as long.
_MAX_GROUP_CANDIDATES = 2**16
# Rows whose scores and candidates, up to 16 bytes a token of the vocabulary, exist at once.
_ROWS_AT_ONCE = 32


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
        begun = (_begin_row(row, draw, *best) for row, draw, best in zip(raw, draws, bests, strict=True))
        results: list[Drawn] = []
        while some := list(islice(begun, _ROWS_AT_ONCE)):
            drawn = _draw_lots([lot for lot in some if isinstance(lot, _Lot)])
            results += [next(drawn) if isinstance(row, _Lot) else row for row in some]
        for row, draw, result in zip(raw, draws, results, strict=True):
            num_logprobs = draw.row_sampling.sampling.num_logprobs
            if num_logprobs is not None and result.error is None:
                row_logprobs = RowLogprobs(row, num_logprobs)
                result.logprobs = [row_logprobs.of(token_id) for token_id in result.token_ids]
        return results

    def drawable(self, logits: Tensor) -> Tensor:
        """Return the logits of the ids that can be drawn, in float32: [num_rows, vocab_size]."""
        return logits[:, : self._vocab_size].to(torch.float32)


@dataclass(frozen=True, slots=True)
class _Lot:
    """A row that is left to chance.

    Attributes:
        scores: [num_candidates] float64, logits / temperature.
        candidates: [num_candidates] int64 token ids; None for the whole vocabulary.
        keys: one a draw.
    """

    scores: Tensor
    candidates: Tensor | None
    keys: tuple[NoiseKey, ...]


def _begin_row(raw: Tensor, draw: Draw, best_value: float, best_id: int) -> Drawn | _Lot:
    """Process and filter one row of raw logits, whose largest value and its first id are known."""
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
        return Drawn(token_ids=[best_id] * draw.num_draws)
    # Row by row on contiguous tensors: a call's shape and alignment then depend on the row alone.
    scores = logits.contiguous() / row_sampling.temperature
    candidates = row_sampling.filters.candidates(scores)
    seed, position = row_sampling.sampling.seed, draw.history.num_output_tokens
    return _Lot(
        scores=(scores if candidates is None else scores[candidates]).to(torch.float64),
        candidates=candidates,
        keys=tuple(NoiseKey(seed, row_sampling.child + offset, position) for offset in range(draw.num_draws)),
    )


def _draw_lots(lots: Sequence[_Lot]) -> Iterator[Drawn]:
    """Yield argmax(score + Gumbel noise) of each lot, in order."""
    noises = _noises_of([(key, lot.candidates) for lot in lots if lot.candidates is not None for key in lot.keys])
    for lot in lots:
        token_ids = []
        for key in lot.keys:
            if lot.candidates is None:
                noise = gumbel_noise_of_vocabulary(key, lot.scores.shape[0], lot.scores.device)
                token_ids.append(int((lot.scores + noise).argmax()))
            else:
                token_ids.append(int(lot.candidates[(lot.scores + next(noises)).argmax()]))
        yield Drawn(token_ids=token_ids)


def _noises_of(draws: Sequence[tuple[NoiseKey, Tensor]]) -> Iterator[Tensor]:
    """Yield the noise of each draw's candidates, made in groups of draws whose work space is bounded."""
    group: list[tuple[NoiseKey, Tensor]] = []
    size = 0
    for draw in draws:
        if size > _MAX_GROUP_CANDIDATES:
            yield from gumbel_noise(*zip(*group, strict=True))
            group, size = [], 0
        group.append(draw)
        size += draw[1].shape[0]
    if group:
        yield from gumbel_noise(*zip(*group, strict=True))
