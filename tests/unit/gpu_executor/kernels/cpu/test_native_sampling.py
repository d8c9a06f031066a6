"""Native draws give the tokens of the torch reference, whatever the row looks like and however it is filtered."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.gpu_executor.kernels.cpu.cpu_ops import CpuOps
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing
from pagewire.gpu_executor.kernels.draws import DrawRow, Filters, NoiseKey
from pagewire.gpu_executor.kernels.layouts import DenseWeight, Int8Weight, StackedWeight
from pagewire.gpu_executor.kernels.reference import draws as reference_draws
from pagewire.gpu_executor.kernels.reference.filters import candidates
from pagewire.gpu_executor.kernels.reference.logprobs import logprobs as reference_logprobs
from tests.support.weights import permuted, random_int4

# Rows that end within a vector, within a group of scores, and at the end of the padding.
SIZES = [1, 7, 31, 33, 512, 513, 3001]
VOCAB_SIZE = 49152


@pytest.fixture(scope="module", params=["portable", "auto"])
def ops(request: pytest.FixtureRequest) -> CpuOps:
    try:
        return CpuOps(2, request.param)
    except LibraryMissing as exc:
        pytest.skip(str(exc))


def make_row(size, seed=0, kind="model"):
    generator = torch.Generator().manual_seed(1000 * size + seed)
    values = torch.randn(size, generator=generator)
    return {
        "model": values * 2.5,  # some hundred likely tokens in a vocabulary of 50,000
        "flat": values * 0.01,
        "peaked": values * 12,
        "ties": (values * 2).round(),
        "masked": torch.where(torch.arange(size) % 7 == seed % 7, values, -math.inf) if size > 7 else values,
    }[kind].contiguous()


KINDS = ["model", "flat", "peaked", "ties", "masked"]
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_draws_are_those_of_the_reference(ops, size, kind):
    rows = [
        DrawRow(make_row(size, i, kind), temperature, filters, NoiseKey(seed, child, position), num_draws)
        for i, filters in enumerate(FILTERS)
        for temperature, seed, child, position, num_draws in (
            (1.0, 7 + i, 0, 0, 4),
            (0.7, -(2**63) + i, 3, 2**20, 1),
            (2.0, 2**63 - 1 - i, 127, 5, 2),
        )
    ]
    assert ops.draw(rows) == reference_draws.draw(rows)


@pytest.mark.parametrize("scale", [1.0, 2.5, 6.0])
def test_draws_from_a_whole_vocabulary_are_those_of_the_reference(ops, scale):
    row = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(int(scale))) * scale
    rows = [DrawRow(row, 1.0, filters, NoiseKey(5, 0, i)) for i, filters in enumerate(FILTERS)]
    rows += [DrawRow(row, 1.0, Filters(), NoiseKey(seed, 0, 0)) for seed in range(20)]
    assert ops.draw(rows) == reference_draws.draw(rows)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 2**32 - 1),
    child=st.integers(0, 127),
    size=st.sampled_from([5, 64, 700, 3001]),
    kind=st.sampled_from(KINDS),
    temperature=st.sampled_from([0.01, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 20, 600, 2**62]),
    top_p=st.sampled_from([1.0, 1e-3, 0.5, 0.95, 0.999999]),
    min_p=st.sampled_from([0.0, 1e-4, 0.1, 1.0]),
)
def test_any_parameters_draw_what_the_reference_draws(
    ops, seed, position, child, size, kind, temperature, top_k, top_p, min_p
):
    row = DrawRow(
        make_row(size, seed % 100, kind),
        temperature,
        Filters(top_k=top_k, top_p=top_p, min_p=min_p),
        NoiseKey(seed, child, position),
        num_draws=3,
    )
    assert ops.draw([row]) == reference_draws.draw([row])


@pytest.mark.parametrize("filters", FILTERS[1:])
@pytest.mark.parametrize("kind", ["model", "ties", "flat"])
def test_draws_reach_every_candidate_and_no_other(ops, filters, kind):
    row = make_row(97, 3, kind) / 4
    kept = candidates(filters, row)
    num_draws = 2000
    (drawn,) = ops.draw([DrawRow(row, 1.0, filters, NoiseKey(11, 0, 0), num_draws)])
    expected = set(range(97)) if kept is None else set(kept.tolist())
    assert set(drawn) <= expected
    share = torch.softmax(row[sorted(expected)], -1)
    likely = {token_id for token_id, p in zip(sorted(expected), share.tolist(), strict=True) if p > 20 / num_draws}
    assert likely <= set(drawn)


def test_a_rows_draw_does_not_depend_on_its_neighbours(ops):
    rows = [DrawRow(make_row(3001, i), 0.9, FILTERS[i % len(FILTERS)], NoiseKey(i, 0, i), 1 + i % 3) for i in range(20)]
    assert ops.draw(rows) == [ops.draw([row])[0] for row in rows]


def test_huge_logits_overflow_nothing(ops):
    row = make_row(3001) * 1e30
    for filters in (Filters(), Filters(top_k=5), Filters(top_p=0.5), Filters(min_p=0.5)):
        assert ops.draw([DrawRow(row, 0.01, filters, NoiseKey(1, 0, 0))]) == [[int(row.argmax())]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_top", [0, 1, 5, -1])
def test_logprobs_ranks_and_alternatives_are_those_of_the_reference(ops, size, kind, num_top):
    row = make_row(size, 1, kind)
    token_ids = sorted({0, size // 2, size - 1, int(row.argmax())})
    ours, expected = ops.logprobs(row, token_ids, num_top), reference_logprobs(row, token_ids, num_top)
    assert (ours.ranks, ours.top_token_ids) == (expected.ranks, expected.top_token_ids)
    assert ours.logprobs == pytest.approx(expected.logprobs, rel=1e-6, abs=1e-6)
    assert ours.top_logprobs == pytest.approx(expected.top_logprobs, rel=1e-6, abs=1e-6)


def test_logprobs_do_not_depend_on_where_the_row_lies(ops):
    row = make_row(3001)
    moved = torch.cat([torch.zeros(3), row])[3:]
    assert moved.data_ptr() % 16 != row.data_ptr() % 16
    assert ops.logprobs(moved, [5, 17], 4) == ops.logprobs(row, [5, 17], 4)


@pytest.mark.parametrize("size", SIZES)
def test_argmax_takes_the_lowest_of_equals_and_shows_nan(ops, size):
    row = make_row(size, 2, "ties")
    assert ops.argmax(row) == (float(row.max()), int(row.argmax()))
    row[size // 2] = math.nan
    assert math.isnan(ops.argmax(row)[0])


def int8_weight(num_rows: int, bias: torch.Tensor | None = None) -> Int8Weight:
    generator = torch.Generator().manual_seed(num_rows)
    codes = torch.randint(-127, 128, (num_rows, HIDDEN_SIZE), dtype=torch.int8, generator=generator)
    scale = torch.rand(num_rows, HIDDEN_SIZE // 32, generator=generator).half() / 64
    return Int8Weight(codes, scale, bias=bias)


HIDDEN_SIZE = 96
OUTPUT_WEIGHTS = {
    "float32": DenseWeight(torch.randn(1003, HIDDEN_SIZE, generator=torch.Generator().manual_seed(1))),
    "int8": int8_weight(1003),
    "biased": int8_weight(517, torch.linspace(-30, 30, 517)),
    "stacked": StackedWeight((int8_weight(330), int8_weight(301))),
    "int4-permuted": permuted(random_int4(1003, HIDDEN_SIZE)),
}


@pytest.mark.parametrize("weight", OUTPUT_WEIGHTS.values(), ids=OUTPUT_WEIGHTS)
@pytest.mark.parametrize(("num_rows", "kept_rows"), [(1, []), (1, [0]), (5, [1, 4]), (130, [0, 64, 65, 129])])
@pytest.mark.parametrize("num_padding", [0, 1, 350])
def test_output_layer_has_the_bits_of_the_product(ops, weight, num_rows, kept_rows, num_padding):
    hidden = torch.randn(num_rows, HIDDEN_SIZE, generator=torch.Generator().manual_seed(num_rows))
    packed = ops.prepare_weight(weight)
    num_drawable = weight.out_features - num_padding
    logits = ops.linear(hidden, packed)[:, :num_drawable]
    output = ops.output_layer(hidden, packed, num_drawable, kept_rows)
    assert output.best_ids == logits.argmax(-1).tolist()
    assert output.best_values == logits.amax(-1).tolist()
    if kept_rows:
        assert torch.equal(output.logits, logits[kept_rows])
    else:
        assert output.logits is None


def test_output_layer_takes_the_lowest_of_equals_and_shows_nan(ops):
    weight = DenseWeight(torch.ones(1003, HIDDEN_SIZE))
    hidden = torch.ones(3, HIDDEN_SIZE)
    hidden[1, 40] = math.nan
    output = ops.output_layer(hidden, ops.prepare_weight(weight), 1003, [])
    assert (output.best_ids[0], output.best_ids[2]) == (0, 0)
    assert [math.isnan(value) for value in output.best_values] == [False, True, False]
