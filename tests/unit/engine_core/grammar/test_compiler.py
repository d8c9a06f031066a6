"""A thread does what would hold up the loop, and a descriptor tells of it."""

from __future__ import annotations

import sys
import threading

import pytest
import zmq

from pagewire.checkpoint.tokenizer.load import count_ids, read_tokenizer
from pagewire.engine_core.grammar.compiled import CompiledGrammar
from pagewire.engine_core.grammar.compiler import LIMITS_S, GrammarCompiler
from pagewire.engine_core.grammar.gate import Lane
from pagewire.engine_core.grammar.vocabulary_source import VocabularySource
from pagewire.ipc.structured_outputs import Grammar
from tests.support.tiny_model import tiny_checkpoint

DEADLINE_MS = 60_000


class Orders:
    """What a compiler asks of an engine's `Grammars`."""

    def __init__(self, *grammars: Grammar) -> None:
        self.orders = list(grammars)
        self.slow_orders = []
        self.results = []
        self.successor_orders = []

    def take_order(self, lane):
        orders = self.orders if lane is Lane.QUICK else self.slow_orders
        return orders.pop(0) if orders else None

    def finish(self, result):
        self.results.append(result)
        if result.compiled is None and result.error is None:
            self.slow_orders.append(result.grammar)

    def take_successor_orders(self):
        orders, self.successor_orders = self.successor_orders, []
        return orders

    def succeed(self, grammar, successor):
        self.results.append((grammar, successor))


def run(compiler: GrammarCompiler, poller: zmq.Poller, engine: Orders, count: int) -> None:
    compiler.exchange(engine)
    while len(engine.results) < count:
        assert poller.poll(DEADLINE_MS), "no result in time"
        compiler.exchange(engine)


@pytest.fixture
def source() -> VocabularySource:
    path = tiny_checkpoint("llama")
    return VocabularySource(model_path=str(path), vocab_size=count_ids(read_tokenizer(path)[0]), eos_token_ids=(0,))


def test_nothing_is_started_before_the_first_grammar(source):
    poller = zmq.Poller()
    compiler = GrammarCompiler(source, log_level="warning", poller=poller)
    compiler.exchange(Orders())
    assert not compiler.is_started
    assert not poller.poll(0)
    compiler.close()


def test_where_the_library_is_missing_whoever_waits_is_told_so(source, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pagewire.engine_core.grammar.helper", None)  # importing it is an ImportError
    poller = zmq.Poller()
    compiler = GrammarCompiler(source, log_level="warning", poller=poller)
    engine = Orders(Grammar("regex", "a+"))
    run(compiler, poller, engine, 1)
    assert "Install llguidance" in engine.results[0].error.message
    compiler.close()


@pytest.mark.parametrize("fails", [False, True])
def test_next_automaton_of_a_grammar_is_made_beside_the_loop_or_said_to_be_none(source, fails):
    def build():
        if fails and builders:
            raise MemoryError
        builders.append(threading.current_thread())
        return object()

    builders: list[threading.Thread] = []
    poller = zmq.Poller()
    compiler = GrammarCompiler(source, log_level="warning", poller=poller)
    engine = Orders()
    grammar = CompiledGrammar(build, frozenset())
    engine.successor_orders = [grammar]
    run(compiler, poller, engine, 1)
    ((ordered, successor),) = engine.results
    assert ordered is grammar
    assert (successor is None) == fails
    assert fails or builders[1] is not threading.current_thread()
    compiler.close()


@pytest.mark.slow
def test_results_come_in_order_each_with_its_matcher_or_its_reason(source):
    poller = zmq.Poller()
    compiler = GrammarCompiler(source, log_level="warning", poller=poller)
    engine = Orders(Grammar("regex", "a+"), Grammar("regex", "["), Grammar("choice", '["b"]'))
    run(compiler, poller, engine, 3)
    first, second, third = engine.results
    assert first.compiled.eos_token_ids == {0}
    assert first.compiled.start(frozenset(), source.vocab_size).masks(())
    assert second.compiled is None
    assert "unclosed" in second.error.message
    assert third.compiled is not None
    assert not poller.poll(0)
    compiler.close()


@pytest.mark.slow
def test_grammar_that_takes_long_is_tried_again_beside_others_with_more_time(source, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(LIMITS_S, Lane.QUICK, 0.05)
    monkeypatch.setitem(LIMITS_S, Lane.SLOW, 0.5)
    poller = zmq.Poller()
    compiler = GrammarCompiler(source, log_level="warning", poller=poller)
    endless = Grammar("json_schema", '{"type": "integer", "multipleOf": 99999989}')
    engine = Orders(endless, Grammar("regex", "a+"))
    run(compiler, poller, engine, 3)
    deferred, *others = engine.results
    assert (deferred.grammar, deferred.compiled, deferred.error) == (endless, None, None)
    by_grammar = {result.grammar: result for result in others}
    assert by_grammar[Grammar("regex", "a+")].compiled is not None
    assert "more than 0.5 s" in by_grammar[endless].error.message
    compiler.close()


@pytest.mark.slow
def test_what_is_no_longer_wanted_when_its_turn_comes_is_not_compiled(source):
    poller = zmq.Poller()
    compiler = GrammarCompiler(source, log_level="warning", poller=poller)
    engine = Orders(Grammar("regex", "a+"), Grammar("regex", "b+"))
    compiler.exchange(engine)
    compiler.exchange(engine)
    engine.orders[:] = [Grammar("regex", "c+")]
    run(compiler, poller, engine, 2)
    assert [result.grammar.text for result in engine.results] == ["a+", "c+"]
    compiler.close()


@pytest.mark.slow
def test_vocabulary_that_can_not_be_read_refuses_every_grammar(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    poller = zmq.Poller()
    compiler = GrammarCompiler(
        VocabularySource(model_path=str(tmp_path), vocab_size=10), log_level="critical", poller=poller
    )
    engine = Orders(Grammar("regex", "a"), Grammar("regex", "b"))
    run(compiler, poller, engine, 2)
    assert all("vocabulary" in result.error.message for result in engine.results)
    compiler.close()
