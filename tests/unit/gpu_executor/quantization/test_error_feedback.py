"""Error feedback: products with the inputs are kept, better than by rounding each weight, and always the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.formats.quantized.integer_matrix import IntegerMatrix
from pagewire.gpu_executor.quantization import error_feedback
from pagewire.gpu_executor.quantization.error_feedback import fit_integers_to_inputs
from pagewire.gpu_executor.quantization.least_squares import fit_integers

GRIDS = {
    "int4": {"bits": 4, "group_size": 32, "is_symmetric": False},
    "int4 symmetric": {"bits": 4, "group_size": 64, "is_symmetric": True},
    "int8 rows": {"bits": 8, "group_size": None, "is_symmetric": True},
}
BFLOAT16 = (torch.bfloat16,)


def layer(num_tokens: int = 1000) -> tuple[Tensor, Tensor]:
    """A matrix, and inputs whose channels go together and differ in strength, as those of layers do."""
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(128, 128, generator=generator) * torch.rand(128, generator=generator) ** 2
    inputs = torch.randn(num_tokens, 128, generator=generator) @ mixing
    return torch.randn(24, 128, generator=generator), inputs


def moments_of(inputs: Tensor) -> Tensor:
    return inputs.t() @ inputs / len(inputs)


def output_error(rounded: IntegerMatrix, matrix: Tensor, inputs: Tensor) -> float:
    return float(((rounded.dequantize().double() - matrix) @ inputs.double().t()).square().mean())


@pytest.mark.parametrize("grid", GRIDS)
def test_products_lose_less_than_half_of_what_rounding_costs_them(grid: str) -> None:
    matrix, inputs = layer()
    plain = fit_integers(matrix, **GRIDS[grid], scale_dtypes=BFLOAT16)
    fed_back = fit_integers_to_inputs(matrix, moments_of(inputs), **GRIDS[grid], scale_dtypes=BFLOAT16)
    assert output_error(fed_back, matrix, inputs) < 0.5 * output_error(plain, matrix, inputs)
    assert int(fed_back.codes.max()) < 2**fed_back.bits
    assert torch.equal(fed_back.scale, fed_back.scale.bfloat16().float())
    again = fit_integers_to_inputs(matrix, moments_of(inputs), **GRIDS[grid], scale_dtypes=BFLOAT16)
    assert torch.equal(fed_back.codes, again.codes)


def test_blocks_of_channels_are_no_other_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, inputs = layer()
    by_block = fit_integers_to_inputs(matrix, moments_of(inputs), **GRIDS["int4"], scale_dtypes=BFLOAT16)
    monkeypatch.setattr(error_feedback, "_BLOCK", 128)
    at_once = fit_integers_to_inputs(matrix, moments_of(inputs), **GRIDS["int4"], scale_dtypes=BFLOAT16)
    # Sums in another order tip a code now and then, and what follows it in its row.
    assert (by_block.codes == at_once.codes).float().mean() > 0.9


def test_without_channels_that_go_together_it_is_the_search() -> None:
    matrix, _ = layer()
    plain = fit_integers(matrix, **GRIDS["int4"], scale_dtypes=BFLOAT16)
    for moments in (torch.zeros(128, 128), torch.eye(128)):
        fed_back = fit_integers_to_inputs(matrix, moments, **GRIDS["int4"], scale_dtypes=BFLOAT16)
        assert torch.equal(plain.codes, fed_back.codes)
        assert torch.equal(plain.scale, fed_back.scale)


def test_fewer_inputs_than_channels_and_dead_channels_are_no_obstacle() -> None:
    matrix, inputs = layer(num_tokens=20)
    inputs[:, 5:9] = 0.0
    plain = fit_integers(matrix, **GRIDS["int4"], scale_dtypes=BFLOAT16)
    fed_back = fit_integers_to_inputs(matrix, moments_of(inputs), **GRIDS["int4"], scale_dtypes=BFLOAT16)
    assert output_error(fed_back, matrix, inputs) < 0.5 * output_error(plain, matrix, inputs)


def test_channels_that_count_more_are_met_better() -> None:
    matrix, _ = layer()
    importance = torch.ones(128)
    importance[::32] = 1000.0

    def error(shares: Tensor | None) -> Tensor:
        rounded = fit_integers(matrix, **GRIDS["int4"], scale_dtypes=BFLOAT16, importance=shares)
        return (rounded.dequantize() - matrix)[:, ::32].square().mean()

    assert error(importance) < 0.3 * error(None)


def test_inputs_that_are_no_numbers_are_refused() -> None:
    moments = torch.eye(128)
    moments[3, 3] = torch.nan
    with pytest.raises(ValueError, match="its inputs hold a NaN"):
        fit_integers_to_inputs(layer()[0], moments, **GRIDS["int4"], scale_dtypes=BFLOAT16)
