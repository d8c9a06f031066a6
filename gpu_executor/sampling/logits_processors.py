"""What requests may do to a row of logits before a token is drawn: one ordered list, each with declared arguments.

A processor is made from a request's `Sampling` once, when its row enters the batch; a request that does not use it gets
none, and a row without processors costs nothing. Each says which edits of one row it wants (`RowEdits`) and sees that
row's tokens alone, so a neighbour in the batch can't change a bit of it. Masked tokens are -inf, and no later edit
brings them back.

A new one is a class here and a place in `LOGITS_PROCESSORS`. A grammar's mask is none of them: the core makes it anew
for each draw, see `token_masks`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol, Self

import numpy as np

from pagewire.ipc.sampling_params import Sampling

from .row_edits import PenaltyStrengths, RowEdits, TokenHistory


class LogitsProcessor(Protocol):
    """One edit of a row of logits.

    Attributes:
        arguments: the fields of `Sampling` that it reads.
        reads_token_ids: whether its edits hang on the tokens before the draw, and not only on their number: then it
            can't be asked before the host knows them.
        is_constant: whether its edits are the same before every draw of a request.
    """

    arguments: ClassVar[tuple[str, ...]]
    reads_token_ids: ClassVar[bool]
    is_constant: ClassVar[bool]

    @classmethod
    def from_sampling(cls, sampling: Sampling, vocab_size: int) -> Self | None:
        """Return the processor for a request, or None if the request does not use it.

        Ids from `vocab_size` on are padding of the embedding: they can't be drawn, so they are left out.
        """

    def edit(self, edits: RowEdits, history: TokenHistory) -> None:
        """Add the row's edits of this step.

        Args:
            edits: those of the processors before it; added to.
            history: the tokens before the draw.
        """


class AllowedTokens:
    """Draw from a list of tokens alone."""

    arguments: ClassVar[tuple[str, ...]] = ("allowed_token_ids",)
    reads_token_ids: ClassVar[bool] = False
    is_constant: ClassVar[bool] = True

    def __init__(self, token_ids: np.ndarray) -> None:
        self._token_ids = token_ids

    @classmethod
    def from_sampling(cls, sampling: Sampling, vocab_size: int) -> Self | None:
        """See `LogitsProcessor`."""
        if sampling.allowed_token_ids is None:
            return None
        return cls(_id_array(sampling.allowed_token_ids, vocab_size))

    def edit(self, edits: RowEdits, history: TokenHistory) -> None:
        """See `LogitsProcessor`."""
        edits.allowed_ids = self._token_ids


class BadWords:
    """Mask the token that would complete a forbidden sequence in the output."""

    arguments: ClassVar[tuple[str, ...]] = ("bad_words_token_ids",)
    reads_token_ids: ClassVar[bool] = True
    is_constant: ClassVar[bool] = False

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

    def edit(self, edits: RowEdits, history: TokenHistory) -> None:
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
            edits.masked_ids.append(np.array(banned, dtype=np.int64))


class MinTokens:
    """Mask the end tokens until enough tokens are there."""

    arguments: ClassVar[tuple[str, ...]] = ("min_tokens", "end_token_ids")
    reads_token_ids: ClassVar[bool] = False
    is_constant: ClassVar[bool] = False

    def __init__(self, min_tokens: int, end_token_ids: np.ndarray) -> None:
        self._min_tokens = min_tokens
        self._end_token_ids = end_token_ids

    @classmethod
    def from_sampling(cls, sampling: Sampling, vocab_size: int) -> Self | None:
        """See `LogitsProcessor`."""
        if sampling.min_tokens == 0 or not sampling.end_token_ids:
            return None
        return cls(sampling.min_tokens, _id_array(sampling.end_token_ids, vocab_size))

    def edit(self, edits: RowEdits, history: TokenHistory) -> None:
        """See `LogitsProcessor`."""
        if history.num_output_tokens < self._min_tokens:
            edits.masked_ids.append(self._end_token_ids)


class LogitBias:
    """Add a constant to single tokens."""

    arguments: ClassVar[tuple[str, ...]] = ("logit_bias",)
    reads_token_ids: ClassVar[bool] = False
    is_constant: ClassVar[bool] = True

    def __init__(self, token_ids: np.ndarray, biases: np.ndarray) -> None:
        self._token_ids = token_ids
        self._biases = biases

    @classmethod
    def from_sampling(cls, sampling: Sampling, vocab_size: int) -> Self | None:
        """See `LogitsProcessor`."""
        drawable = {token_id: bias for token_id, bias in sampling.logit_bias.items() if token_id < vocab_size}
        if not drawable:
            return None
        return cls(_id_array(drawable, vocab_size), np.array(list(drawable.values()), dtype=np.float32))

    def edit(self, edits: RowEdits, history: TokenHistory) -> None:
        """See `LogitsProcessor`."""
        edits.biased_ids, edits.biases = self._token_ids, self._biases


class Penalties:
    """Make tokens that occurred less likely: see `PenaltyStrengths`. Which ones, whoever edits the logits looks up."""

    arguments: ClassVar[tuple[str, ...]] = ("repetition_penalty", "frequency_penalty", "presence_penalty")
    reads_token_ids: ClassVar[bool] = False
    is_constant: ClassVar[bool] = True

    def __init__(self, strengths: PenaltyStrengths) -> None:
        self._strengths = strengths

    @classmethod
    def from_sampling(cls, sampling: Sampling, vocab_size: int) -> Self | None:
        """See `LogitsProcessor`."""
        strengths = PenaltyStrengths(sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        return None if strengths == (1.0, 0.0, 0.0) else cls(strengths)

    def edit(self, edits: RowEdits, history: TokenHistory) -> None:
        """See `LogitsProcessor`."""
        edits.penalties = self._strengths


# Edits of different kinds are applied in the order of `RowEdits`, those of one kind in this one.
LOGITS_PROCESSORS: tuple[type[LogitsProcessor], ...] = (AllowedTokens, BadWords, MinTokens, LogitBias, Penalties)


def make_processors(sampling: Sampling, vocab_size: int) -> tuple[LogitsProcessor, ...]:
    """Return the processors that a request uses, in order.

    Args:
        sampling: the request's parameters, ids in range.
        vocab_size: ids that can be drawn.
    """
    made = (processor.from_sampling(sampling, vocab_size) for processor in LOGITS_PROCESSORS)
    return tuple(processor for processor in made if processor is not None)


def edits_of(processors: Sequence[LogitsProcessor], history: TokenHistory) -> RowEdits:
    """Return what a row's processors do to it in one step."""
    edits = RowEdits()
    for processor in processors:
        processor.edit(edits, history)
    return edits


def _id_array(token_ids: Iterable[int], vocab_size: int) -> np.ndarray:
    return np.array([token_id for token_id in token_ids if token_id < vocab_size], dtype=np.int64)
