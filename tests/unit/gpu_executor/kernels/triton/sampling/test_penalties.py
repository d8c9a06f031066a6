"""Penalties by kernels have the bits of the host's, however often a token occurs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pagewire.gpu_executor.kernels.device_draws import PenaltyTable
from pagewire.gpu_executor.kernels.triton.sampling import penalties
from pagewire.gpu_executor.sampling.row_edits import PenaltyStrengths, RowEdits, TokenHistory, apply_edits
from tests.support.logit_rows import make_row

VOCAB_SIZE = 131
STRENGTHS = [
    PenaltyStrengths(1.7, 0.0, 0.0),
    PenaltyStrengths(1.0, 0.3, 0.7),
    PenaltyStrengths(0.3, -1.9, 2.0),
    PenaltyStrengths(1.0, 0.0, -0.5),
    PenaltyStrengths(3.1, 1.1, 0.1),
]
# None, one, more than one block of tokens; ids of the padding (131 and up) among them.
HISTORIES = [([], 0), ([5], 1), ([7] * 600, 2), (list(range(120, 140)) * 3, 25), ([9, 9, 200, 9, 9, 3], 3)]


def table_of(rows, histories, strengths):
    lengths = torch.tensor([len(tokens) for tokens, _ in histories], dtype=torch.int32)
    return PenaltyTable(
        torch.tensor(rows, dtype=torch.int32),
        lengths.cumsum(0) - lengths,
        torch.tensor([num_prompt for _, num_prompt in histories], dtype=torch.int32),
        lengths,
        *torch.tensor(strengths, dtype=torch.float32).T.contiguous(),
        torch.tensor([token for tokens, _ in histories for token in tokens], dtype=torch.int32),
        max_tokens=int(lengths.max()),
    )


def penalized_on_the_host(logits, rows, histories, strengths):
    expected = logits.clone()
    for row, (tokens, num_prompt), of_row in zip(rows, histories, strengths, strict=True):
        history = TokenHistory(np.array(tokens, dtype=np.int32), num_prompt)
        apply_edits(expected[row, :VOCAB_SIZE], RowEdits(penalties=of_row), history)
    return expected


@pytest.mark.parametrize("shift", range(3))
def test_penalties_have_the_bits_of_the_hosts(shift):
    logits = torch.stack([make_row(VOCAB_SIZE + 5, seed) for seed in range(7)])
    rows = [6, 0, 2, 3, 5]
    histories = HISTORIES[shift:] + HISTORIES[:shift]
    expected = penalized_on_the_host(logits, rows, histories, STRENGTHS)
    penalties.penalize(logits, VOCAB_SIZE, table_of(rows, histories, STRENGTHS))
    assert torch.equal(logits, expected)


def test_rows_beyond_those_that_are_counted_at_once_are_penalized_too(monkeypatch):
    monkeypatch.setattr(penalties, "_ROWS_AT_ONCE", 2)
    logits = torch.stack([make_row(VOCAB_SIZE, seed) for seed in range(5)])
    expected = penalized_on_the_host(logits, range(5), HISTORIES, STRENGTHS)
    penalties.penalize(logits, VOCAB_SIZE, table_of(range(5), HISTORIES, STRENGTHS))
    assert torch.equal(logits, expected)


def test_masked_tokens_stay_masked():
    logits = torch.full((1, VOCAB_SIZE), -torch.inf)
    table = table_of([0], [([3, 4, 4], 1)], [PenaltyStrengths(0.5, -2.0, -2.0)])
    penalties.penalize(logits, VOCAB_SIZE, table)
    assert torch.equal(logits, torch.full((1, VOCAB_SIZE), -torch.inf))
