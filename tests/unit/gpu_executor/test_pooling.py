from __future__ import annotations

import numpy as np
import pytest
import torch

from pagewire.gpu_executor.batch.step_inputs import PoolSpan
from pagewire.gpu_executor.pooling import Pooler

HIDDEN = torch.randn(40, 24, generator=torch.Generator().manual_seed(3), dtype=torch.float32)


def span(pooling, first_token, num_tokens, end, *, row_id=1, is_last=True):
    return PoolSpan(
        row_id=row_id, pooling=pooling, first_token=first_token, num_tokens=num_tokens, end=end, is_last=is_last
    )


def in_chunks(pooling, lengths):
    """Return the vector of the first tokens, computed in chunks that lie at odd places of their steps."""
    pooler, start, results = Pooler(None), 0, {}
    for index, length in enumerate(lengths):
        step = torch.cat([torch.full((2, 24), 7.0), HIDDEN[start : start + length]])
        start += length
        results = pooler.pool(step, [span(pooling, 2, length, start, is_last=index == len(lengths) - 1)]).collect()
    return results[1].pooled


@pytest.mark.parametrize("lengths", [[30], [1] * 30, [7, 16, 7], [29, 1]])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_chunks_change_no_bit(pooling, lengths):
    expected = HIDDEN[29] if pooling == "last" else HIDDEN[:30].double().mean(0).float()
    vector = in_chunks(pooling, lengths)
    assert vector == in_chunks(pooling, [30])
    assert np.frombuffer(vector, dtype="<f4") == pytest.approx(expected.numpy(), abs=1e-6)


def test_a_step_may_hold_several_rows():
    spans = [span("mean", 0, 5, 5), span("last", 5, 3, 3, row_id=2), span("last", 8, 4, 4, row_id=3, is_last=False)]
    results = Pooler(None).pool(HIDDEN, spans).collect()
    assert list(results) == [1, 2]
    assert results[2].pooled == HIDDEN[7].numpy().tobytes()


def test_a_row_that_was_removed_leaves_nothing():
    pooler = Pooler(None)
    pooler.pool(HIDDEN, [span("mean", 0, 5, 5, is_last=False)])
    pooler.forget([1, 2])
    with pytest.raises(AssertionError, match="from the first on"):
        pooler.pool(HIDDEN, [span("mean", 0, 5, 10)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mean_of_half_precision_states_is_not_rounded_in_between(dtype):
    states = torch.full((4096, 3), 1.001, dtype=dtype)
    result = Pooler(None).pool(states, [span("mean", 0, 4096, 4096)]).collect()[1]
    assert np.frombuffer(result.pooled, dtype="<f4").tolist() == states[0].float().tolist()


def test_states_that_are_no_numbers_are_an_error_of_their_row():
    states = HIDDEN.clone()
    states[3] = torch.inf
    results = Pooler(None).pool(states, [span("last", 0, 4, 4), span("last", 4, 2, 2, row_id=2)]).collect()
    assert results[1].error is not None
    assert results[2].error is None
