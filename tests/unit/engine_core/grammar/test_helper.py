"""The helper's process: it proves grammars, and what takes too much loses it alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from pagewire.checkpoint.tokenizer.load import count_ids, read_tokenizer
from pagewire.engine_core.grammar.helper import GrammarHelper
from pagewire.engine_core.grammar.vocabulary_source import VocabularySource
from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.structured_outputs import Grammar
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

GOOD = Grammar("regex", "a+")


@pytest.fixture
def helper() -> Iterator[GrammarHelper]:
    path = tiny_checkpoint("llama")
    source = VocabularySource(model_path=str(path), vocab_size=count_ids(read_tokenizer(path)[0]), eos_token_ids=(0,))
    made = GrammarHelper(source, log_level="warning")
    yield made
    made.end()


def test_grammars_are_proven_or_refused_one_after_the_other(helper):
    assert "a+" in helper.prove(GOOD)
    with pytest.raises(InvalidRequest, match="unclosed"):
        helper.prove(Grammar("regex", "["))
    with pytest.raises(InvalidRequest, match="JSON"):
        helper.prove(Grammar("json_schema", "[" * 100_000))
    assert helper.prove(GOOD)


def test_grammar_that_takes_too_long_is_refused_in_time_and_the_next_one_finds_another_process(helper):
    helper.prove(GOOD)
    former = helper._process.pid
    os.kill(former, signal.SIGSTOP)  # as one that computes for ever
    helper._limit_s = 0.2
    started = time.monotonic()
    with pytest.raises(InvalidRequest, match=r"more than 0\.2 s"):
        helper.prove(GOOD)
    assert time.monotonic() - started < 5
    helper._limit_s = 30
    assert helper.prove(GOOD)
    assert helper._process.pid != former


def test_process_that_ends_over_a_grammar_is_replaced(helper):
    helper.prove(GOOD)
    os.kill(helper._process.pid, signal.SIGKILL)
    helper._process.wait(10)
    assert helper.prove(GOOD)


@pytest.mark.parametrize("is_loaded", [True, False])
def test_grammar_amid_which_the_process_was_killed_is_tried_again(helper, is_loaded):
    helper.start()
    if is_loaded:
        helper.prove(GOOD)
    former = helper._process.pid
    os.kill(former, signal.SIGSTOP)
    killer = threading.Timer(0.2, os.kill, (former, signal.SIGKILL))
    killer.start()
    assert "a+" in helper.prove(GOOD)
    assert helper._process.pid != former
    killer.join()


def test_grammar_that_has_two_processes_killed_is_refused(helper, monkeypatch):
    def killed(pair):
        os.kill(helper._process.pid, signal.SIGKILL)
        raise EOFError

    monkeypatch.setattr(helper, "_answer", killed)
    with pytest.raises(InvalidRequest, match="memory"):
        helper.prove(GOOD)


def test_vocabulary_that_can_not_be_read_is_said_at_once_each_time(tmp_path):
    helper = GrammarHelper(VocabularySource(model_path=str(tmp_path), vocab_size=10), log_level="warning")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="vocabulary"):
            helper.prove(GOOD)
    helper.end()
