"""Logprobs, ranks and best tokens by kernels are those of the reference."""

from __future__ import annotations

import pytest
import torch

from pagewire.gpu_executor.kernels.device_draws import Reports, ReportTable
from pagewire.gpu_executor.kernels.reference.logprobs import logprobs as reference_logprobs
from pagewire.gpu_executor.kernels.triton.launches.sampling import MAX_TOP
from pagewire.gpu_executor.kernels.triton.sampling.best_tokens import find_best_tokens
from pagewire.gpu_executor.kernels.triton.sampling.token_logprobs import describe_tokens
from tests.support.logit_rows import make_row

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def described(logits, size, rows, token_ids, num_tops):
    count, max_top = len(rows), max(num_tops)
    reports = Reports(
        torch.empty(count, dtype=torch.float64),
        torch.empty(count),
        torch.empty(count, dtype=torch.int32),
        torch.empty(count, max_top, dtype=torch.int32),
        torch.empty(count, max_top),
    )
    table = ReportTable(
        *(torch.tensor(numbers, dtype=torch.int32) for numbers in (rows, range(count), num_tops)), max_top=max_top
    )
    bests = find_best_tokens(logits, size, with_groups=max_top > 0)
    describe_tokens(logits, size, bests, torch.tensor(token_ids), table, reports)
    return reports


@pytest.mark.parametrize("kind", ["model", "flat", "peaked", "ties", "masked"])
@pytest.mark.parametrize(("size", "num_tops"), [(5, (0, 1, 5)), (131, (0, 0, 0)), (4099, (20, 3, 0))])
def test_logprobs_ranks_and_best_tokens_are_those_of_the_reference(size, num_tops, kind):
    logits = torch.full((2, size + 3), 1000.0)  # padding that must not count
    logits[:, :size] = torch.stack([make_row(size, seed, kind) for seed in range(2)])
    rows = [0, 1, 1]
    token_ids = [int(logits[0, :size].argmax()), size - 1, size // 2]
    reports = described(logits, size, rows, token_ids, num_tops)
    for i, (row, token_id, num_top) in enumerate(zip(rows, token_ids, num_tops, strict=True)):
        expected = reference_logprobs(logits[row, :size], [token_id], num_top)
        assert [int(reports.ranks[i])] == expected.ranks
        assert reports.top_ids[i, :num_top].tolist() == expected.top_token_ids
        assert [float(reports.logprobs[i])] == pytest.approx(expected.logprobs, rel=1e-6, abs=1e-6)
        assert reports.top_logprobs[i, :num_top].tolist() == pytest.approx(expected.top_logprobs, rel=1e-6, abs=1e-6)


def test_as_many_best_tokens_as_the_kernel_takes_are_in_order():
    logits = make_row(1000, 0, "ties")[None]
    reports = described(logits, 1000, [0], [3], [MAX_TOP])
    expected = reference_logprobs(logits[0], [3], MAX_TOP)
    assert reports.top_ids[0].tolist() == expected.top_token_ids
    assert reports.top_logprobs[0].tolist() == pytest.approx(expected.top_logprobs, rel=1e-6)


def test_negative_zero_is_as_good_as_zero():
    logits = torch.full((1, 131), -1.0)
    logits[0, 3], logits[0, 40] = -0.0, 0.0  # of two groups
    reports = described(logits, 131, [0], [40], [1])
    assert (reports.top_ids.tolist(), reports.ranks.tolist()) == ([[3]], [2])


def test_bits_do_not_depend_on_the_neighbours():
    logits = torch.stack([make_row(1000, seed) for seed in range(3)])
    together = described(logits, 1000, [0, 1, 2], [4, 5, 6], [2, 0, 2])
    alone = described(logits[2:].clone(), 1000, [0], [6], [2])
    assert torch.equal(together.logprobs[2:], alone.logprobs)
    assert torch.equal(together.normalizers[2:], alone.normalizers)
    assert torch.equal(together.top_logprobs[2:], alone.top_logprobs)
