"""Larger value first; of equal values the lower token id."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pagewire.gpu_executor.kernels.reference.token_order import best_indices, rank_of

# Few distinct values, so that ties are the rule.
ROWS = st.lists(st.sampled_from([-1.5, 0.0, 0.25, 7.0, float("-inf")]), min_size=1, max_size=40)


@given(ROWS, st.integers(1, 45))
def test_best_indices_are_the_head_of_the_whole_order(values, count):
    row = torch.tensor(values)
    expected = sorted(range(len(values)), key=lambda index: (-values[index], index))[:count]
    assert best_indices(row, count).tolist() == expected


@given(ROWS)
def test_rank_is_the_place_in_the_order(values):
    row = torch.tensor(values)
    order = best_indices(row, len(values)).tolist()
    assert [rank_of(row, index) for index in order] == list(range(1, len(values) + 1))
