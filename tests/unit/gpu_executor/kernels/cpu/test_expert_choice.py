"""The compiled choice of experts is the reference's, by tokens of their own."""

from __future__ import annotations

import pytest
import torch

from pagewire.gpu_executor.kernels.cpu.cpu_ops import CpuOps
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing
from pagewire.gpu_executor.kernels.expert_choice import choose_experts


@pytest.fixture(scope="module", params=[("auto", 2), ("portable", 1)], ids=str)
def ops(request: pytest.FixtureRequest) -> CpuOps:
    instruction_set, num_threads = request.param
    try:
        return CpuOps(num_threads, instruction_set)
    except LibraryMissing as exc:
        pytest.skip(str(exc))


@pytest.mark.parametrize("is_renormalized", [False, True])
@pytest.mark.parametrize(("num_experts", "num_chosen"), [(6, 2), (8, 8), (128, 8), (61, 1)])
def test_experts_and_weights_are_those_of_the_reference(
    ops: CpuOps, num_experts: int, num_chosen: int, is_renormalized: bool
) -> None:
    logits = 3 * torch.randn(50, num_experts, generator=torch.Generator().manual_seed(0))
    expected = choose_experts(logits, num_chosen, is_renormalized=is_renormalized)
    choice = ops.choose_experts(logits, num_chosen, is_renormalized=is_renormalized)
    assert torch.equal(choice.expert_ids, expected.expert_ids)
    torch.testing.assert_close(choice.weights, expected.weights, rtol=1e-6, atol=1e-7)
    alone = [ops.choose_experts(row, num_chosen, is_renormalized=is_renormalized) for row in logits.split(1)]
    assert torch.equal(torch.cat([row.weights for row in alone]), choice.weights)


def test_of_equals_the_lower_numbers_are_chosen(ops: CpuOps) -> None:
    choice = ops.choose_experts(torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0]]), 3, is_renormalized=True)
    assert choice.expert_ids.tolist() == [[0, 1, 3]]


@pytest.mark.parametrize("logits", [[torch.nan] * 4, [0.0, torch.nan, 1.0, 2.0], [torch.inf, 0.0, 1.0, torch.inf]])
def test_numbers_that_are_none_give_distinct_experts_and_show(ops: CpuOps, logits: list[float]) -> None:
    choice = ops.choose_experts(torch.tensor([logits, [3.0, 2.0, 1.0, 0.0]]), 2, is_renormalized=True)
    first, second = choice.expert_ids[0].tolist()
    assert 0 <= first < second < 4
    assert choice.weights[0].isnan().any()
    assert choice.expert_ids[1].tolist() == [0, 1]
    assert choice.weights[1].isfinite().all()
