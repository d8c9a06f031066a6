"""The helper's process: it proves grammars, and what takes too much loses it alone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pagewire.checkpoint.tokenizer.load import count_ids, read_tokenizer
from pagewire.engine_core.grammar.helper import PATIENCE_S, GrammarHelper, TakesTooLong
from pagewire.engine_core.grammar.vocabulary_source import VocabularySource
from pagewire.ipc.errors import EngineError, InvalidRequest
from pagewire.ipc.structured_outputs import Grammar
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

GOOD = Grammar("regex", "a+")


ENDLESS = Grammar("json_schema", '{"type": "integer", "multipleOf": 99999989}')
LIMIT_S = 30.0


@pytest.fixture
def helper() -> Iterator[GrammarHelper]:
    path = tiny_checkpoint("llama")
    source = VocabularySource(model_path=str(path), vocab_size=count_ids(read_tokenizer(path)[0]), eos_token_ids=(0,))
    made = GrammarHelper(source, log_level="warning")
    yield made
    made.end()


def pid_of(helper: GrammarHelper) -> int:
    return helper._helper.process.pid


def test_grammars_are_proven_or_refused_one_after_the_other(helper):
    assert "a+" in helper.prove(GOOD, LIMIT_S)
    with pytest.raises(InvalidRequest, match="unclosed"):
        helper.prove(Grammar("regex", "["), LIMIT_S)
    with pytest.raises(InvalidRequest, match="JSON"):
        helper.prove(Grammar("json_schema", "[" * 100_000), LIMIT_S)
    assert helper.prove(GOOD, LIMIT_S)


def test_grammar_that_computes_too_long_ends_alone_and_the_process_goes_on_with_others(helper):
    helper.prove(GOOD, LIMIT_S)
    former = pid_of(helper)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(helper.prove, ENDLESS, 1.0)
        with pytest.raises(TakesTooLong):
            helper.prove(ENDLESS, 0.1)
        assert helper.prove(GOOD, LIMIT_S)
        with pytest.raises(TakesTooLong):
            other.result()
    assert pid_of(helper) == former


def test_process_that_does_not_answer_is_replaced(helper):
    helper.prove(GOOD, LIMIT_S)
    former = pid_of(helper)
    os.kill(former, signal.SIGSTOP)
    helper._patience_s = 0.1
    with pytest.raises(TakesTooLong):
        helper.prove(GOOD, 0.1)
    helper._patience_s = PATIENCE_S
    assert helper.prove(GOOD, LIMIT_S)
    assert pid_of(helper) != former


def test_process_that_was_killed_is_replaced(helper):
    helper.prove(GOOD, LIMIT_S)
    os.kill(pid_of(helper), signal.SIGKILL)
    helper._helper.process.wait(10)
    assert helper.prove(GOOD, LIMIT_S)


@pytest.mark.parametrize("is_loaded", [True, False])
def test_grammar_amid_which_the_process_was_killed_is_tried_again(helper, is_loaded):
    helper.start()
    if is_loaded:
        helper.prove(GOOD, LIMIT_S)
    former = pid_of(helper)
    os.kill(former, signal.SIGSTOP)
    killer = threading.Timer(0.2, os.kill, (former, signal.SIGKILL))
    killer.start()
    assert "a+" in helper.prove(GOOD, LIMIT_S)
    assert pid_of(helper) != former
    killer.join()


def test_grammar_that_has_two_processes_killed_is_refused(helper, monkeypatch):
    def kill(message):
        if helper._helper.is_loaded:
            os.kill(pid_of(helper), signal.SIGKILL)
            raise EOFError
        return ""

    monkeypatch.setattr("pagewire.engine_core.grammar.helper._text_of", kill)
    with pytest.raises(InvalidRequest, match="memory"):
        helper.prove(GOOD, LIMIT_S)


def test_ended_helper_starts_no_process_any_more(helper):
    helper.prove(GOOD, LIMIT_S)
    helper.end()
    with pytest.raises(EngineError, match="stops"):
        helper.prove(GOOD, LIMIT_S)
    assert helper._helper is None


def test_vocabulary_that_can_not_be_read_is_said_at_once_each_time(tmp_path):
    helper = GrammarHelper(VocabularySource(model_path=str(tmp_path), vocab_size=10), log_level="warning")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="vocabulary"):
            helper.prove(GOOD, LIMIT_S)
    helper.end()
