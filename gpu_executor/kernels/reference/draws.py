"""Draws: argmax(logit / temperature + Gumbel noise) over the tokens that the filters leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from ..draws import DrawRow, NoiseKey
from .filters import candidates
from .noise import gumbel_noise, gumbel_noise_of_vocabulary

# Candidates whose noise is made in one run; each takes some hundred bytes meanwhile. Draws are grouped, not rows: 64
# draws from one row of 49,152 took 730 MB at once, and three times as long.
_MAX_GROUP_CANDIDATES = 2**16
# Rows whose scores and candidates, up to 16 bytes a token of the vocabulary, exist at once.
_ROWS_AT_ONCE = 32


def draw(rows: Sequence[DrawRow]) -> list[list[int]]:
    """See `Ops.draw`."""
    lots = map(_make_lot, rows)
    token_ids: list[list[int]] = []
    while some := list(islice(lots, _ROWS_AT_ONCE)):
        token_ids += _draw_lots(some)
    return token_ids


@dataclass(frozen=True, slots=True)
class _Lot:
    """A row's candidates.

    Attributes:
        scores: [num_candidates] float64, logits / temperature.
        candidates: [num_candidates] int64 token ids; None for the whole vocabulary.
        keys: one a draw.
    """

    scores: Tensor
    candidates: Tensor | None
    keys: tuple[NoiseKey, ...]


def _make_lot(row: DrawRow) -> _Lot:
    # Row by row on contiguous tensors: a call's shape and alignment then depend on the row alone.
    scores = row.logits / row.temperature
    token_ids = candidates(row.filters, scores)
    return _Lot(
        scores=(scores if token_ids is None else scores[token_ids]).to(torch.float64),
        candidates=token_ids,
        keys=tuple(row.key._replace(child=row.key.child + offset) for offset in range(row.num_draws)),
    )


def _draw_lots(lots: Sequence[_Lot]) -> Iterator[list[int]]:
    """Yield argmax(score + Gumbel noise) of each lot's draws, in order."""
    noises = _noises_of([(key, lot.candidates) for lot in lots if lot.candidates is not None for key in lot.keys])
    for lot in lots:
        token_ids = []
        for key in lot.keys:
            if lot.candidates is None:
                noise = gumbel_noise_of_vocabulary(key, lot.scores.shape[0], lot.scores.device)
                token_ids.append(int((lot.scores + noise).argmax()))
            else:
                token_ids.append(int(lot.candidates[(lot.scores + next(noises)).argmax()]))
        yield token_ids


def _noises_of(draws: Sequence[tuple[NoiseKey, Tensor]]) -> Iterator[Tensor]:
    """Yield the noise of each draw's candidates, made in groups of draws whose work space is bounded."""
    group: list[tuple[NoiseKey, Tensor]] = []
    size = 0
    for draw_ in draws:
        if size > _MAX_GROUP_CANDIDATES:
            yield from gumbel_noise(*zip(*group, strict=True))
            group, size = [], 0
        group.append(draw_)
        size += draw_[1].shape[0]
    if group:
        yield from gumbel_noise(*zip(*group, strict=True))
