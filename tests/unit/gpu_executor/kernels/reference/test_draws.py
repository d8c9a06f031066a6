"""A draw is a function of its row; how many share a run of the generator only bounds the work space."""

from __future__ import annotations

import pytest
import torch

from pagewire.gpu_executor.kernels.draws import DrawRow, Filters, NoiseKey
from pagewire.gpu_executor.kernels.reference import draws as reference_draws
from pagewire.gpu_executor.kernels.reference.noise import gumbel_noise

VOCAB_SIZE = 307


@pytest.mark.parametrize(("num_rows", "num_draws"), [(1, 40), (40, 1), (3, 9)])
def test_work_space_of_many_draws_is_bounded_and_changes_no_token(monkeypatch, num_rows, num_draws):
    logits = torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 3
    rows = [DrawRow(row, 2.0, Filters(top_p=0.999), NoiseKey(seed, 0, 1), num_draws) for seed, row in enumerate(logits)]
    in_one_run = reference_draws.draw(rows)
    run_sizes = []

    def recorded(keys, token_ids):
        run_sizes.append(sum(map(len, token_ids)))
        return gumbel_noise(keys, token_ids)

    monkeypatch.setattr(reference_draws, "gumbel_noise", recorded)
    monkeypatch.setattr(reference_draws, "_MAX_GROUP_CANDIDATES", 1000)
    assert reference_draws.draw(rows) == in_one_run
    assert len(run_sizes) > 1
    assert max(run_sizes) <= 1000 + VOCAB_SIZE
