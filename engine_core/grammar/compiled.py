"""A grammar that was compiled, and the automata that follow each other in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from .matcher import ChildMatcher

# Seconds of computing up to which a grammar is compiled in the core's loop when it has to be: it is less than a step.
CHEAP_BUILD_S = 0.002
# Up to which a step waits for a thread to do it, and with it all its rows. A schema of 60 kB takes 0.1 s.
AWAITED_BUILD_S = 0.2
# Tokens that were read after which an automaton's successor is made, so that nobody waits for it. The least that was
# seen to fill one is 900 tokens, of expressions that repeat something thousands of times; most take tens of thousands.
TOKENS_BEFORE_SUCCESSOR = 512


class TokenMatcher(Protocol):
    """What is asked of `llguidance.LLMatcher`."""

    def is_error(self) -> bool: ...
    def get_error(self) -> str: ...
    def is_accepting(self) -> bool: ...
    def is_stopped(self) -> bool: ...
    def consume_token(self, sampled_token: int) -> bool: ...
    def consume_tokens(self, sampled_tokens: list[int]) -> bool: ...
    def rollback(self, num_tokens: int) -> bool: ...
    def validate_tokens(self, tokens: list[int]) -> int: ...
    def compute_bitmask(self) -> bytes: ...
    def deep_copy(self) -> TokenMatcher: ...


class CompiledGrammar:
    """A grammar ready to be followed: the children's matchers are copies of one.

    Copies share an automaton that grows with what they read, up to a bound. Whoever comes to it goes on with a new one,
    and so does whoever starts from then on. What takes long to compile has its next one made by a thread, in time.

    Args:
        build: compiles the grammar, which is known to compile.
        eos_token_ids: end tokens that it knows.
        clock: seconds that the calling thread has computed.

    Attributes:
        matcher: at the start of a text, of the automaton that is grown now.
        num_tokens: that children have read with it.
        is_spent: it is full, and nobody may wait for another one: it has to be compiled again like a new grammar.
    """

    def __init__(
        self,
        build: Callable[[], TokenMatcher],
        eos_token_ids: frozenset[int],
        *,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        started = clock()
        self.matcher = build()
        self._build_s = clock() - started
        self._build = build
        self.eos_token_ids = eos_token_ids
        self.num_tokens = 0
        self.is_spent = False
        self._successor: TokenMatcher | None = None
        self._is_ordered = False

    def start(self, end_token_ids: frozenset[int], vocab_size: int) -> ChildMatcher:
        """Return a matcher for a child.

        Args:
            end_token_ids: all that end the child.
            vocab_size: ids that can be drawn.
        """
        return ChildMatcher(self, vocab_size=vocab_size, more_end_ids=end_token_ids - self.eos_token_ids)

    def replace(self, full: TokenMatcher, *, at_once: bool) -> bool:
        """Have another automaton than a full one; return whether there is one.

        Args:
            full: that automaton's matcher at the start.
            at_once: compile it here and now if a thread has not, even if it takes longer than a step.
        """
        if self.matcher is not full:  # another child has seen to it
            return True
        if self._successor is None:
            if self._build_s > (AWAITED_BUILD_S if at_once else CHEAP_BUILD_S):
                return False
            self._successor = self._build()
        self.matcher, self._successor, self.num_tokens = self._successor, None, 0
        return True

    def is_worth_waiting_for(self) -> bool:
        """Say whether steps may wait for the next automaton; if not, the grammar is spent."""
        self.is_spent = self.is_spent or self._build_s > AWAITED_BUILD_S
        return not self.is_spent

    def order_successor(self, *, is_awaited: bool = False) -> bool:
        """Say whether the next automaton is to be made now; the answer is an order, given once.

        Args:
            is_awaited: somebody waits for it.
        """
        is_due = is_awaited or (self.num_tokens >= TOKENS_BEFORE_SUCCESSOR and self._build_s > CHEAP_BUILD_S)
        if not is_due or self._is_ordered or self._successor is not None:
            return False
        self._is_ordered = True
        return True

    def make_successor(self) -> TokenMatcher:
        """Compile the grammar again, in a thread."""
        return self._build()

    def succeed(self, successor: TokenMatcher | None) -> None:
        """Take in what was ordered; None: it could not be made."""
        self._is_ordered = False
        self._successor = successor
        self.is_spent = self.is_spent or successor is None
