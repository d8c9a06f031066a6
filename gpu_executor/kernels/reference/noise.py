"""Gumbel noise as a pure function of (seed, child, output position, token id): no generator, no state.

The bits come from Philox4x32-10, a counter-based generator: a keyed bijection of 128-bit counters. The layout, which
must never change between versions that share journals:

    key     = (seed & 0xffffffff, (seed >> 32) & 0xffffffff)       the signed 64-bit seed in two's complement
    counter = (token_id >> 2, output position, child, 0)           32 bits each
    token's word = output[token_id & 3]                            one call serves four neighbouring tokens

The child is part of the counter, so that no two (seed, child) pairs ever share a stream. The same noise comes out
after preemption or a restart, on every rank, in any batch, and for every candidate subset of the vocabulary.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (SC'11).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..draws import NoiseKey

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS = 10
_MASK = 0xFFFFFFFF

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox4x32(counter: Words, key: tuple[int, int] | tuple[Tensor, Tensor]) -> Words:
    """Return the four random words of each counter.

    Args:
        counter: four int64 tensors of one broadcastable shape, each value in [0, 2^32).
        key: two words in [0, 2^32), for all counters or each.

    Returns:
        Four int64 tensors, each value in [0, 2^32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        # A 32 x 32 bit product fills all 64 bits: int64 wraps around to the same bits, and the mask takes off the
        # sign that the arithmetic shift smears over the upper half.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        high0, low0 = (product0 >> 32).bitwise_and_(_MASK), product0.bitwise_and_(_MASK)
        high1, low1 = (product1 >> 32).bitwise_and_(_MASK), product1.bitwise_and_(_MASK)
        c0, c1, c2, c3 = (high1 ^ c1).bitwise_xor_(k0), low1, (high0 ^ c3).bitwise_xor_(k1), low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def gumbel_noise(keys: Sequence[NoiseKey], token_ids: Sequence[Tensor]) -> list[Tensor]:
    """Return standard Gumbel noise for some tokens a draw: argmax(logits + noise) is a sample of softmax(logits).

    The draws share one run of the generator, which is exact integer arithmetic; the logarithms are taken draw by draw,
    so that a draw's bits can't depend on where a vectorized loop meets its numbers.

    Args:
        keys: one a draw; at least one.
        token_ids: [num_candidates] int64 each, the ids that a draw chooses among.

    Returns:
        One a draw, [num_candidates] float64, finite.
    """
    ids = torch.cat(list(token_ids))
    sizes = [len(candidates) for candidates in token_ids]
    parts = torch.tensor([(*_key_words(key), key.position, key.child) for key in keys], device=ids.device)
    low, high, position, child = parts.repeat_interleave(torch.tensor(sizes, device=ids.device), dim=0).unbind(dim=1)
    lanes = torch.stack(philox4x32((ids >> 2, position, child, torch.zeros_like(ids)), (low, high)), dim=-1)
    words = lanes.gather(-1, (ids & 3).unsqueeze(-1)).squeeze(-1)
    return [_to_gumbel(part) for part in torch.split(words, sizes)]


def gumbel_noise_of_vocabulary(key: NoiseKey, vocab_size: int, device: torch.device) -> Tensor:
    """Return the noise of every token of one draw: [vocab_size] float64."""
    groups = torch.arange((vocab_size + 3) // 4, dtype=torch.int64, device=device)
    position, child = torch.full_like(groups, key.position), torch.full_like(groups, key.child)
    words = philox4x32((groups, position, child, torch.zeros_like(groups)), _key_words(key))
    return _to_gumbel(torch.stack(words, dim=-1).reshape(-1)[:vocab_size])


def _key_words(key: NoiseKey) -> tuple[int, int]:
    return key.seed & _MASK, (key.seed >> 32) & _MASK


def _to_gumbel(words: Tensor) -> Tensor:
    # Half a step off either end keeps the uniform inside (0, 1), so both logarithms are finite.
    uniform = words.to(torch.float64).add_(0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_()
