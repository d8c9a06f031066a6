"""The output layer names each row's best token and keeps the logits that are asked for."""

from __future__ import annotations

import pytest
import torch

from pagewire.gpu_executor.kernels.layouts import DenseWeight
from pagewire.gpu_executor.kernels.select import select_ops

OPS = select_ops("reference")
GENERATOR = torch.Generator().manual_seed(5)
HIDDEN = torch.randn(7, 24, generator=GENERATOR)
WEIGHT = DenseWeight(torch.randn(130, 24, generator=GENERATOR))


@pytest.mark.parametrize("kept_rows", [[], [0], [2, 3, 6], list(range(7))])
@pytest.mark.parametrize("num_drawable", [130, 113])
def test_best_tokens_and_kept_logits_are_those_of_the_product(kept_rows, num_drawable):
    logits = OPS.linear(HIDDEN, WEIGHT)[:, :num_drawable]
    output = OPS.output_layer(HIDDEN, WEIGHT, num_drawable, kept_rows)
    assert output.best_ids == logits.argmax(-1).tolist()
    assert output.best_values == logits.amax(-1).tolist()
    if kept_rows:
        assert torch.equal(output.logits, logits[kept_rows])
    else:
        assert output.logits is None


def test_padding_of_the_matrix_is_never_best():
    weight = DenseWeight(WEIGHT.weight.clone())
    weight.weight[113:] *= 1000
    assert OPS.output_layer(HIDDEN, weight, 113, []).best_ids == OPS.output_layer(HIDDEN, WEIGHT, 113, []).best_ids


def test_nan_in_a_row_shows_as_its_best_value():
    hidden = HIDDEN.clone()
    hidden[3, 5] = float("nan")
    values = OPS.output_layer(hidden, WEIGHT, 130, []).best_values
    assert [value != value for value in values] == [i == 3 for i in range(7)]
