"""The ops over rows of logits. All have a torch default: a backend overrides those that it computes faster."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .draws import DrawRow, RowLogprobs
from .reference import draws as reference_draws
from .reference import logits as reference_logits
from .reference import logprobs as reference_logprobs


class SamplingOps:
    """What the sampler asks of a backend."""

    def bound_logits(self, logits: Tensor, scale: float, soft_cap: float | None, out: Tensor | None = None) -> Tensor:
        """Scale logits and bound them, in float32: soft_cap * tanh(scale * logit / soft_cap).

        One that is infinite once it is scaled stays so: the bound would hide that the model's numbers overflowed.

        Args:
            logits: [num_rows, vocab_size], any float dtype, as the output layer's product gives them.
            scale: factor of each.
            soft_cap: bound of their magnitudes after that; None: unbounded.
            out: like `logits`, float32, contiguous; written. None: a new tensor.

        Returns:
            `out`, or the new tensor.

        Source: Gemma 2, Gemma Team 2024 (arXiv 2408.00118), for the bound.
        """
        return reference_logits.bound_logits(logits, scale, soft_cap, out)

    def argmax(self, row: Tensor) -> tuple[float, int]:
        """Return the largest of a row, [size] float32, and the lowest index that has it."""
        value, index = row.max(dim=-1)
        return float(value), int(index)

    def draw(self, rows: Sequence[DrawRow]) -> list[list[int]]:
        """Draw argmax(logit / temperature + Gumbel noise) among the tokens that each row's filters leave.

        The noise is a pure function of the key and the token id: Philox4x32-10 with the key (seed) and the counter
        (token id >> 2, position, child, 0), 32 bits each but the seed; the token takes word (token id & 3) of the four,
        u = (word + 0.5) / 2^32, and its noise is -log(-log(u)) in float64. Backends agree but for the last bits of a
        logarithm or an exponential.

        Args:
            rows: any mix of parameters.

        Returns:
            One list of token ids a row, one a draw.

        Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (SC'11).
        """
        return reference_draws.draw(rows)

    def logprobs(self, logits: Tensor, token_ids: Sequence[int], num_top: int) -> RowLogprobs:
        """Return the logarithm of the softmax for some tokens of a row, their ranks, and the row's best tokens.

        Args:
            logits: [num_drawable] float32, contiguous, the largest finite.
            token_ids: the tokens.
            num_top: how many of the best; -1 for all.
        """
        return reference_logprobs.logprobs(logits, token_ids, num_top)
