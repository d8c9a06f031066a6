"""Logprobs are those of the raw distribution, their bits a function of the row alone."""

from __future__ import annotations

import math

import pytest
import torch

from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.sampling.logprobs import prompt_token_logprobs, token_logprobs
from pagewire.ipc.errors import EngineError

OPS = select_ops("reference")


def report_of(row, num_top, token_id):
    (report,) = token_logprobs(OPS, row, [token_id], num_top)
    return report


def random_rows(num_rows=4, vocab_size=3001):
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(3)) * 4


def test_logprobs_are_the_log_softmax():
    (row,) = random_rows(1)
    expected = row.double().log_softmax(-1)
    report = report_of(row, 5, 17)
    assert report.logprob == pytest.approx(float(expected[17]), rel=1e-6)
    assert report.top_token_ids == expected.topk(5).indices.tolist()
    assert report.top_logprobs == pytest.approx(expected.topk(5).values.tolist(), rel=1e-6)
    assert report.rank == 1 + int((row > row[17]).sum())


def test_logprobs_are_exact_float32_numbers():
    report = report_of(random_rows()[0], 3, 5)
    for value in (report.logprob, *report.top_logprobs):
        assert float(torch.tensor(value, dtype=torch.float32)) == value


def test_ties_go_to_the_lower_id():
    report = report_of(torch.tensor([0.0, 2.0, 2.0, 2.0]), 2, 3)
    assert (report.top_token_ids, report.rank) == ([1, 2], 3)


def test_minus_one_reports_the_whole_vocabulary():
    assert len(report_of(random_rows()[0], -1, 0).top_token_ids) == 3001


def test_zero_reports_the_token_alone():
    report = report_of(random_rows()[0], 0, 9)
    assert report.top_token_ids == [] == report.top_logprobs
    assert report.logprob < 0


@pytest.mark.parametrize("num_threads", [1, 2])
def test_bits_depend_on_neither_place_nor_threads(num_threads):
    rows = random_rows(3, 70_001)
    alone = [report_of(row.clone(), 3, 42) for row in rows]
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        padded = torch.cat([torch.zeros(3, 5), rows], dim=1)[:, 5:]  # other strides, other alignment
        assert prompt_token_logprobs(OPS, padded, [42, 42, 42], 3) == alone
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error(value):
    row = random_rows()[0]
    row[7] = value
    with pytest.raises(EngineError, match="not finite"):
        prompt_token_logprobs(OPS, row.unsqueeze(0), [3], 1)
