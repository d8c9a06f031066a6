"""min_p, top_k and top_p keep exactly the tokens that their definitions name, ties settled by the lower id."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.gpu_executor.kernels.draws import Filters
from pagewire.gpu_executor.kernels.reference.filters import candidates


def kept(probabilities, **filters):
    token_ids = candidates(Filters(**filters), torch.tensor(probabilities, dtype=torch.float64).log().float())
    return None if token_ids is None else sorted(token_ids.tolist())


def test_filters_that_are_off_leave_the_row_alone():
    assert kept([0.5, 0.3, 0.2]) is None


@pytest.mark.parametrize("top_k", [3, 4, 2**62])
def test_top_k_of_the_vocabulary_or_more_is_off(top_k):
    assert kept([0.5, 0.3, 0.2], top_k=top_k) is None


def test_top_k_keeps_the_lower_id_of_a_tie():
    assert kept([0.1, 0.3, 0.3, 0.3], top_k=2) == [1, 2]


@pytest.mark.parametrize(
    ("top_p", "expected"), [(1e-4, [1]), (0.49, [1]), (0.51, [1, 2]), (0.81, [1, 2, 3]), (0.999, [0, 1, 2, 3])]
)
def test_top_p_keeps_the_token_that_crosses_the_border(top_p, expected):
    assert kept([0.05, 0.5, 0.3, 0.15], top_p=top_p) == expected


def test_top_p_keeps_the_lower_id_of_a_tie():
    assert kept([0.25, 0.25, 0.25, 0.25], top_p=0.4) == [0, 1]


@pytest.mark.parametrize(("min_p", "expected"), [(0.2, [0, 1, 2]), (0.5, [0, 1]), (1.0, [0])])
def test_min_p_is_relative_to_the_most_likely_token(min_p, expected):
    assert kept([0.5, 0.3, 0.15, 0.05], min_p=min_p) == expected


def test_each_filter_sees_what_the_one_before_left():
    # After top_k two tokens of 0.5 and 0.3 remain: the first holds 0.625 of what is left.
    assert kept([0.5, 0.3, 0.2], top_k=2, top_p=0.6) == [0]
    assert kept([0.5, 0.3, 0.2], top_p=0.6) == [0, 1]


@settings(max_examples=25, deadline=None)  # a row of thousands is slow to sort on a busy machine
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.999), st.sampled_from([300, 5000]))
def test_nucleus_does_not_depend_on_how_much_was_sorted(seed, top_p, size):
    scores = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    order = scores.sort(descending=True, stable=True).indices
    probabilities = (scores[order].double() - scores.max()).exp()
    before = probabilities.cumsum(0) - probabilities
    nucleus = candidates(Filters(top_p=top_p), scores)
    expected = int((before < top_p * probabilities.sum()).sum())
    assert abs(len(nucleus) - expected) <= 1  # the reference sums in another order
    assert torch.equal(nucleus, order[: len(nucleus)])


def test_masked_tokens_are_no_candidates_of_top_p_and_min_p():
    scores = torch.tensor([-math.inf, 1.0, -math.inf, 0.0])
    assert sorted(candidates(Filters(top_p=0.99), scores).tolist()) == [1, 3]
    assert sorted(candidates(Filters(min_p=0.01), scores).tolist()) == [1, 3]
