"""How far one child's text has come in its grammar, and what may follow."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Protocol

from pagewire.ipc.errors import EngineError, PagewireError

from .limits import is_excess, too_much_work


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


class CompiledGrammar:
    """A grammar ready to be followed: the children's matchers are copies of one.

    Copies share an automaton that grows with what they read, up to a bound. Whoever comes to it goes on with a new one,
    and so does whoever starts from then on.

    Args:
        build: compiles the grammar, which is known to compile.
        eos_token_ids: end tokens that it knows.
    """

    def __init__(self, build: Callable[[], TokenMatcher], eos_token_ids: frozenset[int]) -> None:
        self._build = build
        self.matcher = build()
        self.eos_token_ids = eos_token_ids

    def start(self, end_token_ids: frozenset[int], vocab_size: int) -> ChildMatcher:
        """Return a matcher for a child.

        Args:
            end_token_ids: all that end the child.
            vocab_size: ids that can be drawn.
        """
        return ChildMatcher(self, vocab_size=vocab_size, more_end_ids=end_token_ids - self.eos_token_ids)

    def renew(self) -> None:
        """Compile again: in milliseconds as a rule, and once in many thousand tokens."""
        self.matcher = self._build()


class ChildMatcher:
    """A child's place in its grammar: the tokens that it has committed, and nothing else, decide it.

    Args:
        grammar: to be followed from its start.
        vocab_size: ids that can be drawn.
        more_end_ids: ids that end the child and that the grammar doesn't know: they too may be drawn exactly where the
            text may end.
    """

    def __init__(
        self, grammar: CompiledGrammar, *, vocab_size: int, more_end_ids: frozenset[int] = frozenset()
    ) -> None:
        self._grammar = grammar
        self._origin = grammar.matcher
        self._matcher = self._origin.deep_copy()
        self._token_ids: list[int] = []
        self._num_mask_bytes = -(-vocab_size // 32) * 4
        self._more_end_ids = more_end_ids
        self._any_token = b"\xff" * self._num_mask_bytes

    def copy(self) -> ChildMatcher:
        """Return another one at the same place."""
        other = copy.copy(self)
        other._matcher = self._matcher.deep_copy()
        other._token_ids = list(self._token_ids)
        return other

    @property
    def is_done(self) -> bool:
        """Whether nothing can follow but an end."""
        return self._matcher.is_stopped()

    def is_end(self, token_id: int) -> bool:
        """Whether a token ends the child and is no part of its text."""
        return token_id in self._grammar.eos_token_ids or token_id in self._more_end_ids

    def advance(self, token_id: int) -> bool:
        """Go on by a token; return False if it breaks the grammar, and then the child is lost."""
        if token_id in self._more_end_ids:
            return self._matcher.is_accepting()
        is_valid = self._matcher.consume_token(token_id)
        if not is_valid and self._begin_anew():
            is_valid = self._matcher.consume_token(token_id)
        self._token_ids.append(token_id)
        return is_valid

    def explain_refusal(self, token_id: int) -> PagewireError:
        """Return why `advance` took the child for lost."""
        if is_excess(self._matcher.get_error()):
            return self._explain()
        return EngineError(f"Token {token_id} was drawn, which the grammar of structured_outputs forbids.")

    def valid_head(self, token_ids: list[int]) -> list[int]:
        """Return guesses up to the first that breaks the grammar."""
        return token_ids[: self._matcher.validate_tokens(token_ids)]

    def masks(self, drafts: Sequence[int]) -> bytes:
        """Return what may be drawn at the child's place, and behind each of some drafts, as `RowMasks` has it.

        Raises:
            InvalidRequest: the grammar takes more work than it may.
            EngineError: it can't be followed for another reason.
        """
        masks = self._try_masks(drafts)
        if self._matcher.is_error() and self._begin_anew():
            masks = self._try_masks(drafts)
        if self._matcher.is_error():
            raise self._explain()
        return masks

    def _try_masks(self, drafts: Sequence[int]) -> bytes:
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
        return b"".join(masks)

    def _explain(self) -> PagewireError:
        error = self._matcher.get_error()
        if is_excess(error):
            return too_much_work(error)
        return EngineError(f"The grammar of structured_outputs can't be followed any further: {error}")

    def _begin_anew(self) -> bool:
        """Come to the same place with another automaton; return whether that was possible."""
        if self._grammar.matcher is self._origin:  # else another child has seen to it
            self._grammar.renew()
        self._origin = self._grammar.matcher
        self._matcher = self._origin.deep_copy()
        return all(map(self._matcher.consume_token, self._token_ids))

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
