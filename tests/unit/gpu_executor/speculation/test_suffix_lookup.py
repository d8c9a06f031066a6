"""Guesses out of earlier answers."""

from __future__ import annotations

import numpy as np

from pagewire.gpu_executor.speculation import suffix_lookup
from pagewire.gpu_executor.speculation.proposer import RowTokens
from pagewire.gpu_executor.speculation.suffix_lookup import SuffixLookup


def row(row_id: int, prompt: list[int], output: list[int], salt: str = "") -> RowTokens:
    return RowTokens(row_id, np.array([*prompt, *output], dtype=np.int32), len(prompt), salt)


def remembering(*answers: tuple[list[int], str]) -> SuffixLookup:
    """Return a proposer of three guesses that has seen these answers, each with its salt."""
    lookup = SuffixLookup(3, shortest=2)
    for row_id, (answer, salt) in enumerate(answers, start=100):
        lookup.propose([row(row_id, [90, 91], answer, salt)])
        lookup.forget([row_id])
    return lookup


def guesses(lookup: SuffixLookup, tokens: RowTokens) -> list[int]:
    return lookup.propose([tokens])[0]


def test_what_followed_in_an_earlier_answer_is_guessed():
    assert guesses(remembering(([1, 2, 3, 4, 5, 6], "")), row(1, [50], [2, 3])) == [4, 5, 6]


def test_an_answer_that_is_still_written_is_no_source():
    lookup = SuffixLookup(3, shortest=2)
    lookup.propose([row(1, [90], [1, 2, 3, 4, 5])])
    assert guesses(lookup, row(2, [50], [1, 2])) == []


def test_prompts_of_others_are_no_source():
    lookup = SuffixLookup(3, shortest=2)
    lookup.propose([row(1, [1, 2, 3, 4], [9])])
    lookup.forget([1])
    assert guesses(lookup, row(2, [50], [1, 2])) == []


def test_answers_of_another_salt_are_no_source():
    lookup = remembering(([1, 2, 3, 4], "pepper"))
    assert guesses(lookup, row(1, [50], [1, 2])) == []
    assert guesses(lookup, row(2, [50], [1, 2], "pepper")) == [3, 4]


def test_a_rows_own_text_goes_before_an_equally_long_run_of_others():
    lookup = remembering(([1, 2, 30, 31, 32], ""))
    assert guesses(lookup, row(1, [1, 2, 40, 41, 42], [1, 2])) == [40, 41, 42]


def test_a_longer_run_of_others_goes_before_the_rows_own_text():
    lookup = remembering(([9, 1, 2, 30, 31, 32], ""))
    assert guesses(lookup, row(1, [1, 2, 40, 41, 42], [9, 1, 2])) == [30, 31, 32]


def test_no_run_and_no_guess_goes_across_two_answers():
    lookup = remembering(([5, 1], ""), ([2, 7, 8], ""))
    assert guesses(lookup, row(1, [50], [1, 2])) == []
    assert guesses(lookup, row(2, [50], [2, 7])) == [8]


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(suffix_lookup, "_MAX_TOKENS", 8)
    monkeypatch.setattr(suffix_lookup, "_MAX_SALTS", 2)
    lookup = remembering(([1, 2, 3], "a"), ([4, 5, 6, 7, 8, 9, 10, 11], "a"), ([1, 2, 3], "b"), ([1, 2, 3], "c"))
    assert guesses(lookup, row(1, [50], [1, 2], "a")) == []
    assert guesses(lookup, row(2, [50], [4, 5], "a")) == []
    assert guesses(lookup, row(3, [50], [1, 2], "c")) == [3]
