"""A grammar's automata follow each other: at once where that costs nothing, and otherwise made beside the loop."""

from __future__ import annotations

import itertools
import random

import llguidance
import pytest

from pagewire.engine_core.grammar.compiled import (
    AWAITED_BUILD_S,
    CHEAP_BUILD_S,
    TOKENS_BEFORE_SUCCESSOR,
    CompiledGrammar,
)
from pagewire.engine_core.grammar.gate import CompileResult, GrammarGate
from pagewire.engine_core.grammar.matcher import AutomatonFull, ChildMatcher
from pagewire.engine_core.grammar.translate import to_llguidance
from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.structured_outputs import Grammar
from tests.support.builders import build_driver, build_request
from tests.support.grammars import EOS, compile_letters, letters_vocabulary

GRAMMAR = Grammar("regex", "([a-z]*a[a-z]{8}){3}")
VOCAB_SIZE = 30
MAX_STATES = 60  # a few texts fill them
DEAR_S = (CHEAP_BUILD_S + AWAITED_BUILD_S) / 2
LETTERS = [2 + letter for letter in range(8)]


class Builds:
    """Counts how often a grammar was compiled; each time takes so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.count = 0
        self._seconds = seconds
        self._text = to_llguidance(GRAMMAR)

    def compile(self) -> CompiledGrammar:
        return CompiledGrammar(self._build, frozenset([EOS]), clock=lambda: self.count * self._seconds)

    def _build(self) -> llguidance.LLMatcher:
        self.count += 1
        limits = llguidance.LLParserLimits(max_lexer_states=MAX_STATES, verbose_errors=False)
        return llguidance.LLMatcher(letters_vocabulary(), self._text, log_level=0, limits=limits)


def follow(child: ChildMatcher, rng: random.Random) -> None:
    """Go on by letters, of which each has its mask."""
    for _ in range(18):
        child.masks(())
        assert child.advance(rng.choice(LETTERS))


def fill(grammar: CompiledGrammar) -> None:
    """Follow texts until the automaton is full."""
    rng = random.Random(1)
    for _ in range(100):
        follow(grammar.start(frozenset(), VOCAB_SIZE), rng)
    raise AssertionError("never full")


def test_what_is_compiled_in_no_time_is_compiled_where_it_is_needed():
    builds = Builds(CHEAP_BUILD_S)
    grammar = builds.compile()
    with pytest.raises(AssertionError, match="never full"):
        fill(grammar)
    assert builds.count > 1
    assert not grammar.order_successor()


def test_what_takes_longer_is_awaited_and_then_followed_where_it_was():
    builds = Builds(DEAR_S)
    grammar = builds.compile()
    with pytest.raises(AutomatonFull) as full:
        fill(grammar)
    assert full.value.grammar is grammar
    child = grammar.start(frozenset(), VOCAB_SIZE)
    with pytest.raises(AutomatonFull):
        follow(child, random.Random(2))
    assert grammar.order_successor(is_awaited=True)
    assert not grammar.order_successor(is_awaited=True), "one order is enough"
    assert builds.count == 1, "nothing was compiled in the loop"
    grammar.succeed(grammar.make_successor())
    plain = compile_letters(GRAMMAR).compiled.start(frozenset(), VOCAB_SIZE)
    assert all(map(plain.advance, child._token_ids))
    assert child.masks(()) == plain.masks(())
    assert builds.count == 2


def test_next_automaton_is_ordered_long_before_it_is_needed():
    grammar = Builds(DEAR_S).compile()
    assert not grammar.order_successor()
    grammar.num_tokens = TOKENS_BEFORE_SUCCESSOR
    assert grammar.order_successor()
    assert not grammar.order_successor()
    grammar.succeed(grammar.make_successor())
    assert not grammar.order_successor(), "there is one"
    assert grammar.replace(grammar.matcher, at_once=False)
    assert grammar.num_tokens == 0


@pytest.mark.parametrize("cause", ["takes too long", "can't be made"])
def test_what_nobody_may_wait_for_fails_and_is_compiled_like_a_new_grammar(cause):
    grammar = Builds(2 * AWAITED_BUILD_S if cause == "takes too long" else DEAR_S).compile()
    gate = GrammarGate(is_open=True)
    gate.finish(CompileResult(GRAMMAR, grammar))
    assert gate.find(GRAMMAR) is grammar
    if cause == "can't be made":
        grammar.succeed(None)
    with pytest.raises(InvalidRequest, match="20,000 states"):
        fill(grammar)
    assert gate.find(GRAMMAR) is None


@pytest.mark.parametrize("build_s", [0.0, DEAR_S])
@pytest.mark.parametrize("is_async", [False, True])
def test_answers_are_the_same_whichever_automaton_is_followed(build_s, is_async):
    driver = build_driver(vocab_size=VOCAB_SIZE, is_async=is_async, max_model_len=64)
    builds = Builds(build_s)
    driver.engine.grammars.finish(CompileResult(GRAMMAR, builds.compile()))
    for request_id in range(1, 9):
        driver.add(build_request(request_id, [5, 6], grammar=GRAMMAR, seed=request_id, n=2, max_tokens=30))
    driver.run()
    for request_id in range(1, 9):
        driver.check_complete(request_id)
    assert builds.count > 1


def test_step_waits_for_the_automaton_of_one_of_its_rows_and_then_has_the_masks_of_all():
    driver = build_driver(vocab_size=VOCAB_SIZE, max_model_len=64)
    grammar = Builds(DEAR_S).compile()
    with pytest.raises(AutomatonFull):
        fill(grammar)
    driver.engine.grammars.finish(CompileResult(GRAMMAR, grammar))
    other = Grammar("regex", "[a-z]*")
    driver.engine.grammars.finish(compile_letters(other))
    engine = driver.engine
    driver.add(*(build_request(n, [5, 6], grammar=which, seed=n) for n, which in enumerate((GRAMMAR, other), 1)))
    for now in itertools.count(1):
        step = engine.schedule(float(now))
        made = engine.take_masks()
        if not made:
            break
        engine.apply(driver.executor.execute(step, {row.row_id: row.masks for row in made[0].rows}), now + 0.5)
    assert engine.take_masks() == []
    (ordered,) = engine.grammars.take_successor_orders()
    assert ordered is grammar
    engine.grammars.succeed(grammar, grammar.make_successor())
    (masks,) = engine.take_masks()
    assert masks.step_id == step.step_id
    assert all(row.masks for row in masks.rows)
