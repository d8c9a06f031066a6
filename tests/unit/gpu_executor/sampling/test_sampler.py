"""A draw is a function of its row alone, follows the target distribution, and never gives a masked token."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pagewire.gpu_executor.kernels.draws import OutputRows
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.sampling.draw import Draw, RowSampling
from pagewire.gpu_executor.sampling.row_edits import TokenHistory
from pagewire.gpu_executor.sampling.sampler import Sampler
from pagewire.ipc.sampling_params import Sampling, SamplingParams, resolve_sampling

VOCAB_SIZE = 307
OPS = select_ops("reference")


def draw(history=(1, 2, 3), num_prompt=2, child=0, num_draws=1, vocab_size=VOCAB_SIZE, **options):
    row_sampling = RowSampling.prepare(Sampling(**options), child, vocab_size)
    return Draw(row_sampling, TokenHistory(np.array(history, dtype=np.int32), num_prompt), num_draws)


def logits(num_rows, seed=0, vocab_size=VOCAB_SIZE):
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def output_rows(rows, draws, sampler):
    """What an output layer gives the sampler of these logits."""
    rows = rows[:, : sampler.vocab_size].float()
    best_values, best_ids = rows.max(dim=-1)
    kept = [i for i, draw in enumerate(draws) if draw.row_sampling.needs_logits]
    return OutputRows(best_values.tolist(), best_ids.tolist(), rows[kept] if kept else None)


def sample(rows, draws, vocab_size=VOCAB_SIZE):
    sampler = Sampler(vocab_size, OPS)
    return sampler.sample(output_rows(rows, draws, sampler), draws)


MIXED = [
    draw(temperature=0.0),
    draw(temperature=0.0, allowed_token_ids=[4, 9, 200], num_logprobs=3),
    draw(temperature=1.0, seed=5, num_logprobs=2),
    draw(temperature=0.7, seed=-5, top_p=0.8, num_logprobs=0),
    draw(temperature=1.3, seed=6, top_k=7, min_p=0.05),
    draw(temperature=1.0, seed=7, repetition_penalty=1.7, presence_penalty=0.5, num_logprobs=1),
    draw(temperature=0.9, seed=8, num_draws=4, num_logprobs=2),
    draw(temperature=0.0, logit_bias={3: 100.0}, min_tokens=4, end_token_ids=[3]),
]


def test_rows_give_the_same_bits_alone_and_in_any_order():
    rows = logits(len(MIXED))
    together = sample(rows, MIXED)
    assert [sample(rows[i : i + 1], [MIXED[i]])[0] for i in range(len(MIXED))] == together
    for permutation_seed in range(5):
        order = torch.randperm(len(MIXED), generator=torch.Generator().manual_seed(permutation_seed)).tolist()
        assert sample(rows[order], [MIXED[i] for i in order]) == [together[i] for i in order]


def test_sampling_leaves_the_logits_as_they_were():
    sampler = Sampler(VOCAB_SIZE, OPS)
    output = output_rows(logits(len(MIXED)), MIXED, sampler)
    before = output.logits.clone()
    sampler.sample(output, MIXED)
    assert torch.equal(output.logits, before)


def test_only_plain_greedy_rows_are_done_without_their_logits():
    needing = [draw(temperature=0.0, **options) for options in ({"num_logprobs": 0}, {"logit_bias": {1: 2.0}})]
    assert [draw.row_sampling.needs_logits for draw in [draw(temperature=0.0), draw(), *needing]] == [False] + [
        True
    ] * 3


def test_greedy_takes_the_lowest_id_of_a_tie():
    rows = torch.zeros(1, VOCAB_SIZE)
    rows[0, [40, 80, 300]] = 5.0
    assert sample(rows, [draw(temperature=0.0)])[0].token_ids == [40]


@pytest.mark.parametrize("temperature", [0.0, 1e-38, 1e-10, 9e-6])
def test_temperature_below_epsilon_is_greedy(temperature):
    rows = logits(1)
    assert sample(rows, [draw(temperature=temperature)])[0].token_ids == [int(rows.argmax())]


@pytest.mark.parametrize("temperature", [1e-5, 1e-4, 0.001])
def test_tiny_temperature_overflows_nothing(temperature):
    rows = logits(1) * 1e30
    (drawn,) = sample(rows, [draw(temperature=temperature)])
    assert (drawn.error, drawn.token_ids) == (None, [int(rows.argmax())])


NARROWEST = [{"top_p": 1e-4}, {"top_k": 1}, {"min_p": 1.0}]
OFF = [{"top_p": 1.0}, {"top_k": 0}, {"top_k": -1}, {"top_k": VOCAB_SIZE + 5}, {"min_p": 0.0}]


def draw_as_asked(**params):
    sampling = resolve_sampling(SamplingParams(**params), seed=11, eos_token_ids=[])
    return Draw(RowSampling.prepare(sampling, 0, VOCAB_SIZE), TokenHistory(np.array([1, 2], dtype=np.int32), 2))


@pytest.mark.parametrize("filters", NARROWEST)
def test_narrowest_filter_leaves_the_most_likely_token(filters):
    rows = logits(5)
    drawn = sample(rows, [draw_as_asked(temperature=2.0, **filters)] * 5)
    assert [row.token_ids for row in drawn] == rows.argmax(-1, keepdim=True).tolist()


@pytest.mark.parametrize("filters", OFF)
def test_value_that_turns_a_filter_off_changes_no_draw(filters):
    rows = logits(5)
    assert sample(rows, [draw_as_asked(**filters)] * 5) == sample(rows, [draw_as_asked()] * 5)


def test_tiny_temperatures_draw_the_greedy_ids_with_any_filter_in_any_order():
    params = [{"temperature": t, **filters} for t in (1e-4, 1e-10, 1e-38, 0.0) for filters in (*NARROWEST, *OFF)]
    rows = logits(len(params)) * 10
    greedy = rows.argmax(-1, keepdim=True).tolist()
    for seed in range(3):
        order = torch.randperm(len(params), generator=torch.Generator().manual_seed(seed)).tolist()
        drawn = sample(rows[order], [draw_as_asked(**params[i]) for i in order])
        assert [row.token_ids for row in drawn] == [greedy[i] for i in order]


def test_children_of_one_row_draw_what_each_draws_alone():
    rows = logits(1, seed=4)
    (together,) = sample(rows, [draw(temperature=1.5, seed=3, num_draws=5, num_logprobs=1)])
    alone = [sample(rows, [draw(temperature=1.5, seed=3, child=child, num_logprobs=1)])[0] for child in range(5)]
    assert together.token_ids == [drawn.token_ids[0] for drawn in alone]
    assert together.logprobs == [drawn.logprobs[0] for drawn in alone]
    assert len(set(together.token_ids)) > 1


def test_draw_depends_on_the_output_position_not_on_the_prompt_length():
    rows = logits(1)
    short = draw((1, 7), 1, temperature=1.0, seed=1)
    assert sample(rows, [short]) == sample(rows, [draw((1, 1, 1, 7), 3, temperature=1.0, seed=1)])


def test_logprobs_are_of_the_raw_logits_whatever_is_done_to_them():
    rows = logits(1)
    (drawn,) = sample(rows, [draw(temperature=0.5, top_k=3, logit_bias={11: 100.0}, num_logprobs=1)])
    assert drawn.token_ids == [11]
    assert drawn.logprobs[0].logprob == pytest.approx(float(rows[0].double().log_softmax(-1)[11]), rel=1e-6)
    assert drawn.logprobs[0].top_token_ids == [int(rows.argmax())]


def test_padding_of_the_embedding_is_never_drawn_nor_reported():
    rows = torch.cat([logits(2), torch.full((2, 13), 50.0)], dim=1)
    draws = [draw(temperature=0.0, num_logprobs=5), draw(temperature=2.0, num_logprobs=5)]
    assert sample(rows, draws) == sample(rows[:, :VOCAB_SIZE].clone(), draws)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_without_a_token_left_fails_alone(temperature):
    empty = draw(temperature=temperature, allowed_token_ids=[5], bad_words_token_ids=[[5]])
    rows = logits(3)
    good, failed, also_good = sample(rows, [MIXED[0], empty, MIXED[2]])
    assert failed.error is not None
    assert (failed.error.kind, failed.token_ids) == ("InvalidRequest", [])
    assert [good] == sample(rows[:1], [MIXED[0]])
    assert [also_good] == sample(rows[2:], [MIXED[2]])


def test_row_of_nan_logits_fails_alone():
    rows = logits(2)
    rows[0, 100] = math.nan
    failed, good = sample(rows, [MIXED[2], MIXED[0]])
    assert failed.error is not None
    assert failed.error.kind == "EngineError"
    assert good.token_ids == [int(rows[1].argmax())]


def test_row_of_nan_logits_fails_when_only_its_unfiltered_part_is_nan():
    rows = logits(1)
    rows[0, 100] = math.nan
    (drawn,) = sample(rows, [draw(temperature=1.0, allowed_token_ids=[1, 2], num_logprobs=1)])
    assert drawn.error is not None
    assert drawn.error.kind == "EngineError"


def test_masked_greedy_row_beside_random_one_stays_finite():
    rows = logits(2)
    drawn = sample(rows, [MIXED[1], MIXED[2]])
    assert drawn[0].token_ids[0] in (4, 9, 200)
    assert all(entry.error is None for entry in drawn)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits_are_drawn_in_float32(dtype):
    rows = logits(len(MIXED)).to(dtype)
    assert sample(rows, MIXED) == sample(rows.float(), MIXED)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.4, 0.3, 0.15, 0.1, 0.05]),
        ({"top_k": 3}, [0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0, 0]),
        ({"top_p": 0.69}, [0.4 / 0.7, 0.3 / 0.7, 0, 0, 0]),
        ({"temperature": 0.5}, [0.16 / 0.285, 0.09 / 0.285, 0.0225 / 0.285, 0.01 / 0.285, 0.0025 / 0.285]),
    ],
)
def test_draws_follow_the_target_distribution(options, expected):
    row = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05]]).log()
    one_row = draw(vocab_size=5, num_draws=1500, seed=17, **options)
    (drawn,) = sample(row, [one_row], vocab_size=5)
    counts = np.bincount(drawn.token_ids, minlength=5)
    expected_counts = np.array(expected) * 1500
    possible = expected_counts > 0
    assert counts[~possible].sum() == 0
    chi_square = float((((counts - expected_counts) ** 2)[possible] / expected_counts[possible]).sum())
    assert chi_square < 18.5  # the 99.9 % point at 4 degrees of freedom
