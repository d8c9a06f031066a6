"""What requests may do to a row of logits before a token is drawn: one ordered list, each with declared arguments.

A processor is made from a request's `Sampling` once, when its row enters the batch; a request that does not use it gets
none, and a row without processors costs nothing. Each edits one row in place and sees that row alone, so a neighbour
in the batch can't change a bit of it. Masked tokens are -inf, and no later processor brings them back.

A new one (a grammar's mask, say) is a class here and a place in `LOGITS_PROCESSORS`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from pagewire.ipc.sampling_params import Sampling


class TokenHistory(NamedTuple):
    """The tokens before a draw.

    Attributes:
        token_ids: [num_tokens] int32, prompt and output.
        num_prompt_tokens: how many of them are prompt.
    """

    token_ids: np.ndarray
    num_prompt_tokens: int

    @property
    def num_output_tokens(self) -> int:
        """Tokens drawn so far, which is the position of the next one among the outputs."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> np.ndarray:
        """[num_output_tokens] int32."""
        return self.token_ids[self.num_prompt_tokens :]


class LogitsProcessor(Protocol):
    """One edit of a row of logits.

    Attributes:
        arguments: the fields of `Sampling` that it reads.
        reads_token_ids: whether it looks at the tokens before the draw, and not only at their number: then it can't be
            applied before they are known.
    """

    arguments: ClassVar[tuple[str, ...]]
    reads_token_ids: ClassVar[bool]

    @classmethod
    def from_sampling(cls, sampling: Sampling, vocab_size: int) -> Self | None:
        """Return the processor for a request, or None if the request does not use it.

        Ids from `vocab_size` on are padding of the embedding: they can't be drawn, so they are left out.
        """

    def apply(self, row: Tensor, history: TokenHistory) -> None:
        """Edit one row in place.

        Args:
            row: [vocab_size] float32.
            history: the tokens before the draw.
        """


class AllowedTokens:
    """Draw from a list of tokens alone."""

    arguments: ClassVar[tuple[str, ...]] = ("allowed_token_ids",)
    reads_token_ids: ClassVar[bool] = False

    def __init__(self, token_ids: Tensor) -> None:
        self._token_ids = token_ids

    @classmethod
    def from_sampling(cls, sampling: Sampling, vocab_size: int) -> Self | None:
        """See `LogitsProcessor`."""
        if sampling.allowed_token_ids is None:
            return None
        return cls(_id_tensor(sampling.allowed_token_ids, vocab_size))

    def apply(self, row: Tensor, history: TokenHistory) -> None:
        """See `LogitsProcessor`."""
        token_ids = self._token_ids.to(row.device)
        kept = row[token_ids]
        row.fill_(-math.inf)
        row[token_ids] = kept


class BadWords:
    """Mask the token that would complete a forbidden sequence in the output."""

    arguments: ClassVar[tuple[str, ...]] = ("bad_words_token_ids",)
    reads_token_ids: ClassVar[bool] = True

    def __init__(self, last_ids_by_prefix: dict[tuple[int, ...], list[int]]) -> None:
        self._last_ids_by_prefix = last_ids_by_prefix

    @classmethod
    def from_sampling(cls, sampling: Sampling, vocab_size: int) -> Self | None:
        """See `LogitsProcessor`."""
        last_ids_by_prefix: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for *prefix, last_id in sampling.bad_words_token_ids:
            if last_id < vocab_size:
                last_ids_by_prefix[tuple(prefix)].append(last_id)
        return cls(dict(last_ids_by_prefix)) if last_ids_by_prefix else None

    def apply(self, row: Tensor, history: TokenHistory) -> None:
        """See `LogitsProcessor`."""
        longest = max(map(len, self._last_ids_by_prefix))
        tail = tuple(history.output_token_ids[-longest:].tolist()) if longest else ()
        banned = [
            token_id
            for prefix, last_ids in self._last_ids_by_prefix.items()
            if len(prefix) <= len(tail) and tail[len(tail) - len(prefix) :] == prefix
            for token_id in last_ids
        ]
        if banned:
            row[torch.tensor(banned, dtype=torch.int64, device=row.device)] = -math.inf


class MinTokens:
    """Mask the end tokens until enough tokens are there."""

    arguments: ClassVar[tuple[str, ...]] = ("min_tokens", "end_token_ids")
    reads_token_ids: ClassVar[bool] = False

    def __init__(self, min_tokens: int, end_token_ids: Tensor) -> None:
        self._min_tokens = min_tokens
        self._end_token_ids = end_token_ids

    @classmethod
    def from_sampling(cls, sampling: Sampling, vocab_size: int) -> Self | None:
        """See `LogitsProcessor`."""
        if sampling.min_tokens == 0 or not sampling.end_token_ids:
            return None
        return cls(sampling.min_tokens, _id_tensor(sampling.end_token_ids, vocab_size))

    def apply(self, row: Tensor, history: TokenHistory) -> None:
        """See `LogitsProcessor`."""
        if history.num_output_tokens < self._min_tokens:
            row[self._end_token_ids.to(row.device)] = -math.inf


class LogitBias:
    """Add a constant to single tokens."""

    arguments: ClassVar[tuple[str, ...]] = ("logit_bias",)
    reads_token_ids: ClassVar[bool] = False

    def __init__(self, token_ids: Tensor, biases: Tensor) -> None:
        self._token_ids = token_ids
        self._biases = biases

    @classmethod
    def from_sampling(cls, sampling: Sampling, vocab_size: int) -> Self | None:
        """See `LogitsProcessor`."""
        drawable = {token_id: bias for token_id, bias in sampling.logit_bias.items() if token_id < vocab_size}
        if not drawable:
            return None
        return cls(_id_tensor(drawable, vocab_size), torch.tensor(list(drawable.values()), dtype=torch.float32))

    def apply(self, row: Tensor, history: TokenHistory) -> None:
        """See `LogitsProcessor`."""
        row[self._token_ids.to(row.device)] += self._biases.to(row.device)


class Penalties:
    """Make tokens that occurred less likely.

    The repetition penalty divides positive logits and multiplies negative ones, for tokens of prompt and output; then
    the frequency penalty takes off its amount for each occurrence in the output, and the presence penalty once.
    """

    arguments: ClassVar[tuple[str, ...]] = ("repetition_penalty", "frequency_penalty", "presence_penalty")
    reads_token_ids: ClassVar[bool] = True

    def __init__(self, repetition: float, frequency: float, presence: float) -> None:
        self._repetition = repetition
        self._frequency = frequency
        self._presence = presence

    @classmethod
    def from_sampling(cls, sampling: Sampling, vocab_size: int) -> Self | None:
        """See `LogitsProcessor`."""
        penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        return None if penalties == (1.0, 0.0, 0.0) else cls(*penalties)

    def apply(self, row: Tensor, history: TokenHistory) -> None:
        """See `LogitsProcessor`."""
        if self._repetition != 1.0:
            token_ids = np.unique(history.token_ids)
            seen = _to_row(token_ids[token_ids < row.shape[0]], row)
            logits = row[seen]
            row[seen] = torch.where(logits > 0, logits / self._repetition, logits * self._repetition)
        if (self._frequency or self._presence) and history.num_output_tokens:
            token_ids, counts = np.unique(history.output_token_ids, return_counts=True)
            is_drawable = token_ids < row.shape[0]
            cost = counts[is_drawable].astype(np.float32) * np.float32(self._frequency) + np.float32(self._presence)
            row[_to_row(token_ids[is_drawable], row)] -= torch.from_numpy(cost).to(row.device)


# In this order: masks first, so that no bias or penalty can undo them.
LOGITS_PROCESSORS: tuple[type[LogitsProcessor], ...] = (AllowedTokens, BadWords, MinTokens, LogitBias, Penalties)


def make_processors(sampling: Sampling, vocab_size: int) -> tuple[LogitsProcessor, ...]:
    """Return the processors that a request uses, in order.

    Args:
        sampling: the request's parameters, ids in range.
        vocab_size: ids that can be drawn.
    """
    made = (processor.from_sampling(sampling, vocab_size) for processor in LOGITS_PROCESSORS)
    return tuple(processor for processor in made if processor is not None)


def apply_processors(row: Tensor, processors: Sequence[LogitsProcessor], history: TokenHistory) -> None:
    """Edit one row of logits in place by each processor, in order."""
    for processor in processors:
        processor.apply(row, history)


def _id_tensor(token_ids: Iterable[int], vocab_size: int) -> Tensor:
    return torch.tensor([token_id for token_id in token_ids if token_id < vocab_size], dtype=torch.int64)


def _to_row(token_ids: np.ndarray, row: Tensor) -> Tensor:
    return torch.from_numpy(token_ids.astype(np.int64)).to(row.device)
