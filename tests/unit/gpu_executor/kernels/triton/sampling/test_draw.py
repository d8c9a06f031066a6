"""Draws by kernels give the tokens of the torch reference, whatever the row looks like and however it is filtered."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.gpu_executor.kernels.draws import DrawRow, Filters, NoiseKey
from pagewire.gpu_executor.kernels.reference import draws as reference_draws
from pagewire.gpu_executor.kernels.triton.triton_sampling import TritonSampling
from tests.support.logit_rows import KINDS, make_row


class Sampling(TritonSampling):
    """The draws alone."""


OPS = Sampling()

FILTERS = [
    Filters(),
    Filters(top_k=1),
    Filters(top_k=50),
    Filters(top_k=2000),
    Filters(top_p=0.9),
    Filters(top_p=0.9999),
    Filters(top_p=1e-6),
    Filters(min_p=0.05),
    Filters(top_k=40, top_p=0.8, min_p=0.02),
    Filters(top_k=3000, top_p=0.99),
]
KEYS = [(1.0, 7, 0, 0), (0.7, -(2**63), 3, 2**20), (2.0, 2**63 - 1, 127, 5), (0.01, 1, 1, 2**32 - 1)]


@pytest.mark.parametrize(("size", "kind"), [(1, "model"), (5, "ties"), (131, "masked"), (1000, "flat")])
def test_draws_are_those_of_the_reference(size, kind):
    rows = []
    for i, filters in enumerate(FILTERS):
        temperature, seed, child, position = KEYS[i % len(KEYS)]
        rows.append(DrawRow(make_row(size, i, kind), temperature, filters, NoiseKey(seed, child, position), 1 + i % 2))
    assert OPS.draw(rows) == reference_draws.draw(rows)


@pytest.mark.parametrize("kind", ["model", "ties"])
def test_draws_from_rows_of_several_chunks_are_those_of_the_reference(kind):
    rows = [DrawRow(make_row(4099, i, kind), 1.3, filters, NoiseKey(i, 0, i)) for i, filters in enumerate(FILTERS[3:])]
    assert OPS.draw(rows) == reference_draws.draw(rows)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 2**32 - 1),
    child=st.integers(0, 127),
    size=st.sampled_from([5, 64, 700]),
    kind=st.sampled_from(KINDS),
    temperature=st.sampled_from([0.01, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 20, 600, 2**62]),
    top_p=st.sampled_from([1.0, 1e-3, 0.5, 0.95, 0.999999]),
    min_p=st.sampled_from([0.0, 1e-4, 0.1, 1.0]),
)
def test_any_parameters_draw_what_the_reference_draws(
    seed, position, child, size, kind, temperature, top_k, top_p, min_p
):
    filters = Filters(top_k=top_k, top_p=top_p, min_p=min_p)
    row = DrawRow(make_row(size, seed % 100, kind), temperature, filters, NoiseKey(seed, child, position), 2)
    assert OPS.draw([row]) == reference_draws.draw([row])


def test_draws_that_top_p_does_not_leave_are_repeated():
    # Of 900 almost equal tokens a tenth is left: nine in ten first draws are not among them.
    rows = [DrawRow(make_row(900, 3, "flat"), 1.0, Filters(top_p=0.1), NoiseKey(5, 0, 0), 4)]
    drawn, expected = OPS.draw(rows), reference_draws.draw(rows)
    assert drawn == expected
    unfiltered = reference_draws.draw([DrawRow(rows[0].logits, 1.0, Filters(), rows[0].key, 4)])
    assert sum(one != other for one, other in zip(expected[0], unfiltered[0], strict=True)) >= 2


def test_min_p_cuts_where_top_k_leaves_more():
    row = torch.linspace(0, -5, 600)
    rows = [DrawRow(row, 1.0, Filters(top_k=400, min_p=0.5), NoiseKey(seed, 0, 0), 4) for seed in range(3)]
    drawn = OPS.draw(rows)
    assert drawn == reference_draws.draw(rows)
    assert all(token < 84 for tokens in drawn for token in tokens)  # 0.69 below the best: half its probability


def test_ties_are_cut_by_the_lower_id():
    row = torch.zeros(700)
    row[300:] = 1.0
    filters = (Filters(top_k=200), Filters(top_p=0.5), Filters(top_k=150, top_p=0.3))
    rows = [DrawRow(row, 1.0, of_row, NoiseKey(seed, 0, 0)) for seed in range(3) for of_row in filters]
    assert OPS.draw(rows) == reference_draws.draw(rows)


def test_scores_that_the_temperature_makes_equal_are_ties():
    # Neighbours in float32 whose quotients round to one number.
    row = torch.full((70,), 1.9)
    row[33:] = torch.nextafter(row[33:], torch.tensor(2.0))
    temperature = next(t / 100 for t in range(101, 180) if len(set((row / (t / 100)).tolist())) == 1)
    rows = [DrawRow(row, temperature, Filters(top_k=5), NoiseKey(seed, 0, 0), 2) for seed in range(2)]
    drawn = OPS.draw(rows)
    assert drawn == reference_draws.draw(rows)
    assert max(map(max, drawn)) < 5


def test_a_rows_draw_does_not_depend_on_its_neighbours():
    rows = [
        DrawRow(make_row(301, i), 0.9, filters, NoiseKey(i, 0, i), 1 + i % 3) for i, filters in enumerate(FILTERS[::2])
    ]
    together = OPS.draw(rows)
    assert [OPS.draw(rows[:1])[0], *OPS.draw(rows[:0:-1])[::-1]] == together


def test_huge_logits_overflow_nothing():
    row = make_row(301) * 1e30
    rows = [
        DrawRow(row, 0.01, filters, NoiseKey(1, 0, 0))
        for filters in (Filters(), Filters(top_k=5), Filters(top_p=0.5), Filters(min_p=0.5))
    ]
    assert OPS.draw(rows) == [[int(row.argmax())]] * 4


def test_zeros_of_either_sign_are_equal():
    row = torch.zeros(40)
    row[:20] = -0.0
    rows = [DrawRow(row, 1.0, Filters(top_k=4), NoiseKey(seed, 0, 0), 3) for seed in range(2)]
    assert OPS.draw(rows) == reference_draws.draw(rows)
