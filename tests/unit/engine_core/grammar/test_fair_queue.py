"""Whoever sends many grammars waits for their own, and others for one of them each time."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from pagewire.engine_core.grammar.fair_queue import FairQueue, Origin
from pagewire.ipc.channels import ClientId
from pagewire.ipc.structured_outputs import Grammar

ORIGINS = [Origin(ClientId(client), salt) for client in (b"ann", b"bob") for salt in ("", "pepper")]


class Turns(RuleBasedStateMachine):
    """Each origin has grammars of its own, so that a turn says whose it was."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[Origin, set[Grammar]] = {origin: set() for origin in ORIGINS}
        # For each origin, the turns of the others since its own last one, or since it came.
        self.passed: dict[Origin, Counter[Origin]] = {origin: Counter() for origin in ORIGINS}
        self.queue = FairQueue(lambda origin, grammar: grammar in self.waiting[origin])

    @rule(index=st.integers(0, 3), number=st.integers(0, 5), goes=st.booleans())
    def ask(self, index, number, goes):
        origin, grammar = ORIGINS[index], Grammar("regex", f"{index} {number}")
        if grammar in self.waiting[origin]:
            if goes:
                self.waiting[origin].discard(grammar)
            return
        if not self.waiting[origin]:
            self.passed[origin].clear()
        self.waiting[origin].add(grammar)
        self.queue.add(origin, grammar)

    @rule(index=st.integers(0, 3))
    def flood_and_go(self, index):
        for number in range(100):
            self.queue.add(ORIGINS[index], Grammar("regex", f"{index} flood {number}"))
        assert self.queue._num_entries <= 400

    @rule(turns=st.integers(1, 3))
    def take(self, turns):
        for _ in range(turns):
            grammar = self.queue.take()
            if grammar is None:
                assert not any(self.waiting.values()), "somebody waits, and nobody has a turn"
                assert self.queue._num_entries == 0
                return
            origin = ORIGINS[int(grammar.text[0])]
            self.waiting[origin].remove(grammar)  # once, and only what is wanted
            self.passed[origin].clear()
            for other in ORIGINS:
                if other != origin and self.waiting[other]:
                    self.passed[other][origin] += 1
                    assert self.passed[other][origin] == 1, "two turns while another one waits for its own"

    def teardown(self):
        while any(self.waiting.values()):
            self.take(1)


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_of_one_origin_the_first_that_came_is_the_first():
    queue = FairQueue(lambda origin, grammar: True)
    grammars = [Grammar("regex", "a" * length) for length in (3, 1, 2)]
    for grammar in grammars:
        queue.add(ORIGINS[0], grammar)
    assert [queue.take() for _ in range(4)] == [*grammars, None]


def test_whoever_comes_during_a_turn_is_before_the_one_whose_turn_it_is():
    queue = FairQueue(lambda origin, grammar: True)
    many, one = (Grammar("regex", name) for name in ("many", "one"))
    for _ in range(3):
        queue.add(ORIGINS[0], many)
    assert queue.take() is many
    queue.add(ORIGINS[1], one)
    assert [queue.take() for _ in range(4)] == [one, many, many, None]
