"""Gumbel noise in kernels: the bits of `kernels/reference/noise.py`, its logarithms in float64, and a cheap estimate.

Most tokens can't win a draw, which an estimate in float32 shows: only where it comes near the best is the exact noise
made, whose two logarithms in float64 cost many times as much, on some devices hundreds of times.
"""

from __future__ import annotations

import triton
import triton.language as tl

SLACK = tl.constexpr(2.0**-6)
"""More than twice what `estimate_noise` is ever off: the winner by exact noise is at most so far behind that by the
estimate. It is a hundred times the error, since a wider one costs next to nothing."""

LARGEST_GAP = tl.constexpr(26.25)
"""More than the largest noise, -log(-log(1 - 2^-33)) = 22.9, minus the least, -log(-log(2^-33)) = -3.1: a token whose
score is so far below another's never beats it."""


@triton.jit
def noise_words(
    seed: tl.tensor, position: tl.tensor, child: tl.tensor, first_id: tl.tensor, SIZE: tl.constexpr
) -> tl.tensor:
    """Return the random words of SIZE neighbouring tokens, as uint32.

    Args:
        seed: int64.
        position: index of the token among the output tokens, 32 bits.
        child: 32 bits.
        first_id: of the first token, a multiple of 4: one call of the generator serves four tokens.
        SIZE: a power of 2, at least 4.
    """
    counters = first_id // 4 + tl.arange(0, SIZE // 4)
    word0, word1, word2, word3 = tl.philox(seed, counters, position, child, tl.zeros_like(counters))
    # The last two dimensions are (word / 2, word % 2).
    return tl.reshape(tl.join(tl.join(word0, word2), tl.join(word1, word3)), (SIZE,))


@triton.jit
def estimate_noise(words: tl.tensor) -> tl.tensor:
    """Return the noise in float32, off by less than 2^-12."""
    uniform = (words.to(tl.float32) + 0.5) * 2.0**-32
    # Near 1 a float32 has lost what tells the numbers apart: what is missing to 1 has not.
    missing = ((~words).to(tl.float32) + 0.5) * 2.0**-32
    near_one = missing * (1.0 + missing * (0.5 + missing * (1.0 / 3.0)))
    return -tl.log(tl.where(missing < 2.0**-6, near_one, -tl.log(uniform)))


@triton.jit
def exact_noise(words: tl.tensor) -> tl.tensor:
    """Return the noise in float64."""
    return -tl.log(-tl.log((words.to(tl.float64) + 0.5) * 2.0**-32))
