"""Guesses out of a row's own text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.gpu_executor.speculation.prompt_lookup import PromptLookup, continuation, find_last_run
from pagewire.gpu_executor.speculation.proposer import RowTokens


def guesses(tokens: list[int], num_tokens: int = 3, longest: int = 3, shortest: int = 2) -> list[int]:
    lookup = PromptLookup(num_tokens, longest=longest, shortest=shortest)
    return lookup.propose([RowTokens(1, np.array(tokens, dtype=np.int32))])[0]


def test_what_followed_the_same_run_is_guessed():
    assert guesses([5, 6, 7, 8, 9, 1, 2, 5, 6]) == [7, 8, 9]


def test_the_longer_run_counts_before_the_later_one():
    assert guesses([1, 2, 3, 10, 11, 12, 9, 2, 3, 20, 21, 22, 1, 2, 3]) == [10, 11, 12]


def test_of_equal_runs_the_latest_counts():
    assert guesses([2, 3, 10, 11, 12, 2, 3, 20, 21, 22, 2, 3]) == [20, 21, 22]


def test_a_run_that_is_too_short_is_no_reason_to_guess():
    assert guesses([1, 2, 3, 4, 9, 2]) == []
    assert guesses([1, 2, 3, 4, 9, 2], shortest=1) == [3, 4, 9]


def test_a_loop_is_guessed_on_and_on():
    assert guesses([7, 8, 9, 7, 8, 9, 7, 8], num_tokens=7) == [9, 7, 8, 9, 7, 8, 9]
    assert guesses([4, 4, 4], num_tokens=4) == [4, 4, 4, 4]


@pytest.mark.parametrize("tokens", [[1], [1, 2], [1, 1]])
def test_a_short_row_has_nothing_to_look_up(tokens: list[int]):
    assert guesses(tokens) == []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 4), st.integers(0, 3))
def test_the_lookup_finds_what_a_search_one_by_one_finds(tokens: list[int], shortest: int, more: int):
    longest = shortest + more
    expected = None
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        run = tokens[len(tokens) - length :]
        ends = [end for end in range(length, len(tokens)) if tokens[end - length : end] == run]
        if ends:
            expected = ends[-1]
            break
    array = np.array(tokens, dtype=np.int32)
    found = find_last_run(array, array[:-1], longest, shortest)
    assert (None if found is None else found.end) == expected


def test_a_continuation_within_the_text_is_the_text():
    assert continuation(np.arange(10, dtype=np.int32), 4, 3) == [4, 5, 6]
