"""How far one child's text has come in its grammar, and what may follow."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pagewire.ipc.errors import EngineError, PagewireError

from .limits import is_excess, is_full, too_much_work

if TYPE_CHECKING:
    from .compiled import CompiledGrammar


class AutomatonFull(Exception):
    """A child can't go on before its grammar has another automaton, which is to be made beside the loop."""

    def __init__(self, grammar: CompiledGrammar) -> None:
        super().__init__()
        self.grammar = grammar


class ChildMatcher:
    """A child's place in its grammar: the tokens that it has committed, and nothing else, decide it.

    Args:
        grammar: to be followed from its start.
        vocab_size: ids that can be drawn.
        more_end_ids: ids that end the child and that the grammar doesn't know: they too may be drawn exactly where the
            text may end.

    Attributes:
        grammar: is followed.
    """

    def __init__(
        self, grammar: CompiledGrammar, *, vocab_size: int, more_end_ids: frozenset[int] = frozenset()
    ) -> None:
        self.grammar = grammar
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
        return token_id in self.grammar.eos_token_ids or token_id in self._more_end_ids

    def advance(self, token_id: int) -> bool:
        """Go on by a token; return False if it breaks the grammar, and then the child is lost."""
        if token_id in self._more_end_ids:
            return self._matcher.is_accepting()
        is_valid = self._matcher.consume_token(token_id)
        for _ in self._other_automata(at_once=True):
            is_valid = self._matcher.consume_token(token_id)
        self._token_ids.append(token_id)
        self.grammar.num_tokens += 1
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
            AutomatonFull: the grammar's next automaton is to be awaited; the child can be asked again then.
            InvalidRequest: the grammar takes more work than it may.
            EngineError: it can't be followed for another reason.
        """
        masks = self._try_masks(drafts)
        for _ in self._other_automata():
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

    def _other_automata(self, *, at_once: bool = False) -> Iterator[None]:
        """Come to the same place with another automaton, while the one before is full and the next one may not be.

        Args:
            at_once: there must be one now.

        Raises:
            AutomatonFull: the next one is to be awaited.
        """
        is_new = False
        while not is_new and self._matcher.is_error() and is_full(self._matcher.get_error()):
            # Else another child has replaced it, and what others read since may have filled that one too.
            is_new = self._origin is self.grammar.matcher
            if not self.grammar.replace(self._origin, at_once=at_once):
                if not at_once and self.grammar.is_worth_waiting_for():
                    raise AutomatonFull(self.grammar)
                return
            self._origin = self.grammar.matcher
            self._matcher = self._origin.deep_copy()
            if self._matcher.consume_tokens(self._token_ids):
                yield

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
