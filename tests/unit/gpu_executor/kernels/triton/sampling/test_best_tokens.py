"""Best tokens, groups and states of rows: the lowest of equals, NaN never hidden, padding never seen."""

from __future__ import annotations

import math

import pytest
import torch

from pagewire.gpu_executor.kernels.device_draws import NOT_FINITE, NOTHING_TO_DRAW, OK
from pagewire.gpu_executor.kernels.triton.sampling.best_tokens import find_best_tokens, update_best_tokens
from pagewire.gpu_executor.kernels.triton.sampling.scores import GROUP, mass_bits
from pagewire.gpu_executor.kernels.triton.sampling.settle import settle
from pagewire.gpu_executor.kernels.triton.sampling.top_groups import find_top_groups
from tests.support.logit_rows import make_row

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def settled(raw, bests, size):
    num_rows = bests.values.shape[0]
    tokens, states = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows, dtype=torch.int64)
    best_values = settle(raw, bests, size, tokens, states)
    return best_values, tokens, states


@pytest.mark.parametrize("size", [1, 5, 131, 4096, 4099])
def test_best_token_of_a_row_is_the_lowest_of_equals(size):
    logits = torch.full((3, size + 3), 1000.0)  # padding that would win
    logits[:, :size] = torch.stack([make_row(size, seed, kind) for seed, kind in enumerate(("ties", "ties", "model"))])
    rows = logits[:, :size]
    bests = find_best_tokens(logits, size, with_groups=True)
    best_values, tokens, states = settled(bests, bests, size)
    assert best_values.tolist() == rows.amax(-1).tolist()
    assert tokens.tolist() == rows.argmax(-1).tolist()
    assert states.tolist() == [OK] * 3
    groups = [group.amax(-1) for group in rows.split(GROUP, dim=-1)]
    assert torch.equal(bests.group_max, torch.stack(groups, dim=1))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 4098])
def test_row_that_is_not_finite_is_told_and_gets_a_token_of_the_vocabulary(value, place):
    logits = torch.stack([make_row(4099), make_row(4099, 1)])
    logits[0, place] = value
    bests = find_best_tokens(logits, 4099, with_groups=False)
    _, tokens, states = settled(bests, bests, 4099)
    assert states.tolist() == [NOT_FINITE, OK]
    assert 0 <= int(tokens[0]) < 4099
    assert int(tokens[1]) == int(logits[1].argmax())


def test_row_of_minus_infinity_fails_as_raw_logits_and_has_no_token_left_as_edited_ones():
    logits = torch.stack([make_row(131), torch.full((131,), -math.inf)])
    raw = find_best_tokens(logits, 131, with_groups=True)
    assert settled(raw, raw, 131)[2].tolist() == [OK, NOT_FINITE]
    logits[0] = -math.inf
    edited = update_best_tokens(logits, 131, torch.tensor([0], dtype=torch.int32), raw)
    assert settled(raw, edited, 131)[2].tolist() == [NOTHING_TO_DRAW, NOT_FINITE]


def test_update_touches_the_rows_it_is_about():
    logits = torch.stack([make_row(4099, seed) for seed in range(3)])
    raw = find_best_tokens(logits, 4099, with_groups=True)
    before = raw.values.clone()
    logits[[0, 2]] += 1
    edited = update_best_tokens(logits, 4099, torch.tensor([2], dtype=torch.int32), raw)
    assert torch.equal(raw.values, before)
    assert torch.equal(edited.values[:2], before[:2])
    assert edited.values[2].max() == logits[2].max()
    assert torch.equal(edited.group_max[2], torch.stack([g.max() for g in logits[2].split(GROUP)]))


@pytest.mark.parametrize("kind", ["model", "ties", "masked"])
def test_top_groups_are_the_first_of_the_order(kind):
    group_max = torch.stack([make_row(129, seed, kind) for seed in range(2)])
    counts = torch.tensor([0, 1, 40, 500, 7], dtype=torch.int32)
    rows = torch.tensor([0, 0, 1, 1, 0], dtype=torch.int32)
    found = find_top_groups(group_max, rows, counts, 500)
    for entry, (row, count) in enumerate(zip(rows.tolist(), counts.tolist(), strict=True)):
        expected = group_max[row].sort(descending=True, stable=True).indices[:count]
        assert found[entry, : min(count, 129)].tolist() == sorted(expected.tolist())


@pytest.mark.parametrize("size", [1, 2, 5, 128_256, 262_144, 262_145, 2**30])
def test_masses_of_a_row_fit_64_bits(size):
    assert size << mass_bits(size) <= 2**62
