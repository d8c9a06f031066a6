"""A child's place in its grammar, the tokens that may follow, and the end."""

from __future__ import annotations

import random

import llguidance
import pytest

from pagewire.engine_core.grammar import compiling
from pagewire.engine_core.grammar.compiled import CompiledGrammar
from pagewire.engine_core.grammar.translate import to_llguidance
from pagewire.ipc.errors import EngineError, InvalidRequest
from pagewire.ipc.structured_outputs import Grammar
from tests.support.grammars import EOS, LETTERS, STOP, allowed_by, compile_letters, letters_vocabulary

VOCAB_SIZE = 2 + len(LETTERS)


def start(kind, text, *, ends=()):
    compiled = compile_letters(Grammar(kind, text)).compiled
    return compiled.start(frozenset(ends), VOCAB_SIZE)


def ids(text):
    return [2 + LETTERS.index(letter) for letter in text]


def follow(matcher, text):
    for token_id in ids(text):
        matcher.masks(())
        assert matcher.advance(token_id)


def allowed(matcher, drafts=(), position=0):
    found = allowed_by(matcher.masks(drafts), position, VOCAB_SIZE)
    return "".join(
        {EOS: "$", STOP: "#"}.get(token, LETTERS[token - 2] if token > STOP else "") for token in sorted(found)
    )


def test_masks_follow_the_tokens():
    matcher = start("regex", "(ab|ac)*d?")
    assert allowed(matcher) == "$ad"
    assert matcher.advance(ids("a")[0])
    assert allowed(matcher) == "bc"
    assert all(map(matcher.advance, ids("bd")))
    assert matcher.is_done


def test_token_that_breaks_the_grammar_is_refused():
    matcher = start("choice", '["ab"]')
    assert not matcher.advance(ids("b")[0])


def test_other_end_tokens_may_be_drawn_exactly_where_the_text_may_end():
    letter_d = ids("d")[0]
    matcher = start("regex", "a[a-d]{2}b*", ends=[EOS, STOP, letter_d])
    assert allowed(matcher) == "a"
    matcher.advance(ids("a")[0])
    assert allowed(matcher) == "abc"  # d would end the text amid the word
    assert all(map(matcher.advance, ids("ab")))
    assert allowed(matcher) == "$#bd"
    assert matcher.advance(letter_d)
    assert matcher.is_end(letter_d)
    assert matcher.is_end(EOS)
    assert not matcher.is_end(ids("b")[0])


def test_each_draft_has_its_mask_and_moves_nothing():
    matcher = start("regex", "abc?")
    drafts = ids("ab")
    assert [allowed(matcher, drafts, position) for position in range(3)] == ["a", "b", "$c"]
    assert allowed(matcher) == "a"


def test_behind_the_end_and_behind_drafts_that_break_the_grammar_any_token_will_do():
    everything = "$#" + LETTERS
    matcher = start("choice", '["ab"]')
    assert [allowed(matcher, ids("abz"), position) for position in range(4)] == ["a", "b", everything, everything]
    assert [allowed(matcher, ids("zab"), position) for position in range(4)] == ["a", *[everything] * 3]
    assert all(map(matcher.advance, ids("ab")))


def test_drafts_are_cut_off_where_they_break_the_grammar():
    matcher = start("regex", "(ab)+")
    assert matcher.valid_head(ids("abac")) == ids("aba")
    assert matcher.valid_head(ids("ba")) == []


def test_copies_go_their_own_ways():
    matcher = start("regex", "(ab|cd)")
    other = matcher.copy()
    matcher.advance(ids("a")[0])
    assert (allowed(matcher), allowed(other)) == ("b", "ac")


def test_grammar_that_takes_too_much_work_fails_and_allows_nothing():
    matcher = start("choice", '["ab"]')
    matcher.advance(ids("z")[0])
    with pytest.raises(EngineError, match="can't be followed"):
        matcher.masks(())


def test_automaton_that_many_texts_have_filled_is_made_anew_amid_them():
    limits = llguidance.LLParserLimits(max_lexer_states=150, verbose_errors=False)
    text = to_llguidance(Grammar("regex", "([a-z]*a[a-z]{8}){3}"))
    builds = []

    def build():
        builds.append(llguidance.LLMatcher(letters_vocabulary(), text, log_level=0, limits=limits))
        return builds[-1]

    grammar = CompiledGrammar(build, frozenset([EOS]), clock=lambda: 0.0)  # it is compiled in no time
    rng = random.Random(1)
    for _ in range(40):
        children = [grammar.start(frozenset(), VOCAB_SIZE) for _ in range(2)]
        plain = compile_letters(Grammar("regex", "([a-z]*a[a-z]{8}){3}")).compiled.start(frozenset(), VOCAB_SIZE)
        for _ in range(18):
            (token_id,) = ids(rng.choice("abcdefgh"))
            assert children[0].masks(()) == children[1].masks(()) == plain.masks(())
            assert all(child.advance(token_id) for child in [*children, plain])
    assert 1 < len(builds) < 40


def test_next_token_that_takes_more_work_than_it_may_is_refused_with_the_limits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiling, "MAX_STEP_ITEMS", 50)
    matcher = start("grammar", "start: s\ns: s s s | s s | /[a-z]/ | ")
    with pytest.raises(InvalidRequest, match=r"50,000 steps of the lexer, 5,000 items of the parser.*Too many items"):
        follow(matcher, "abcdefghijklmnop")


def test_token_behind_which_there_is_too_much_to_choose_from_is_not_said_to_break_the_grammar():
    words = " | ".join(f'"a" "{"bcdefghi"[n % 8]}{n}"' for n in range(2500))
    matcher = start("grammar", f"start: {words}")
    assert not matcher.advance(ids("a")[0])
    refusal = matcher.explain_refusal(ids("a")[0])
    assert isinstance(refusal, InvalidRequest)
    assert "2000" in refusal.message


def test_token_that_breaks_the_grammar_is_named():
    matcher = start("choice", '["ab"]')
    matcher.advance(ids("b")[0])
    assert "Token 3 was drawn, which the grammar" in matcher.explain_refusal(3).message
