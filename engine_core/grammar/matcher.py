"""How far one child's text has come in its grammar, and what may follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pagewire.ipc.errors import EngineError


class TokenMatcher(Protocol):
    """What is asked of `llguidance.LLMatcher`."""

    def is_error(self) -> bool: ...
    def get_error(self) -> str: ...
    def is_accepting(self) -> bool: ...
    def is_stopped(self) -> bool: ...
    def consume_token(self, sampled_token: int) -> bool: ...
    def rollback(self, num_tokens: int) -> bool: ...
    def validate_tokens(self, tokens: list[int]) -> int: ...
    def compute_bitmask(self) -> bytes: ...
    def deep_copy(self) -> TokenMatcher: ...


class ChildMatcher:
    """A child's place in its grammar: the tokens that it has committed, and nothing else, decide it.

    Args:
        matcher: at the start of the text; taken over.
        vocab_size: ids that can be drawn.
        eos_token_ids: end tokens that the matcher knows.
        more_end_ids: others that end the child: they too may be drawn exactly where the text may end.
    """

    def __init__(
        self,
        matcher: TokenMatcher,
        *,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        more_end_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._matcher = matcher
        self._num_mask_bytes = -(-vocab_size // 32) * 4
        self._eos_token_ids = eos_token_ids
        self._more_end_ids = more_end_ids
        self._any_token = b"\xff" * self._num_mask_bytes

    def copy(self) -> ChildMatcher:
        """Return another one at the same place."""
        other = object.__new__(ChildMatcher)
        other._matcher = self._matcher.deep_copy()
        other._num_mask_bytes, other._any_token = self._num_mask_bytes, self._any_token
        other._eos_token_ids, other._more_end_ids = self._eos_token_ids, self._more_end_ids
        return other

    @property
    def is_done(self) -> bool:
        """Whether nothing can follow but an end."""
        return self._matcher.is_stopped()

    def is_end(self, token_id: int) -> bool:
        """Whether a token ends the child and is no part of its text."""
        return token_id in self._eos_token_ids or token_id in self._more_end_ids

    def advance(self, token_id: int) -> bool:
        """Go on by a token; return False if it breaks the grammar, and then the child is lost."""
        if token_id in self._more_end_ids:
            return self._matcher.is_accepting()
        return self._matcher.consume_token(token_id)

    def valid_head(self, token_ids: list[int]) -> list[int]:
        """Return guesses up to the first that breaks the grammar."""
        return token_ids[: self._matcher.validate_tokens(token_ids)]

    def masks(self, drafts: Sequence[int]) -> bytes:
        """Return what may be drawn at the child's place, and behind each of some drafts, as `RowMasks` has it.

        Raises:
            EngineError: the grammar takes more work than it may.
        """
        matcher = self._matcher
        masks = [self._mask()]
        num_valid = matcher.validate_tokens(list(drafts)) if drafts else 0
        num_consumed = 0
        for token_id in drafts[:num_valid]:
            matcher.consume_token(token_id)
            num_consumed += 1
            if matcher.is_stopped():
                break
            masks.append(self._mask())
        if num_consumed:
            matcher.rollback(num_consumed)
        # Behind the end, and behind drafts that the masks before them forbid, nothing that is drawn counts.
        masks += [self._any_token] * (1 + len(drafts) - len(masks))
        self._check()
        return b"".join(masks)

    def _mask(self) -> bytes:
        mask = self._matcher.compute_bitmask()[: self._num_mask_bytes]
        mask = mask.ljust(self._num_mask_bytes, b"\0")
        if not self._more_end_ids:
            return mask
        bits = bytearray(mask)
        may_end = self._matcher.is_accepting()
        for token_id in self._more_end_ids:
            bit = 1 << token_id % 8
            bits[token_id // 8] = bits[token_id // 8] | bit if may_end else bits[token_id // 8] & ~bit
        return bytes(bits)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise EngineError(
                f"The grammar of structured_outputs can't be followed any further: {self._matcher.get_error()}"
            )
