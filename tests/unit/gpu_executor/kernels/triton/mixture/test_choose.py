"""Experts are chosen as the plain form chooses them, a token at a time."""

from __future__ import annotations

import math

import pytest
import torch

from pagewire.gpu_executor.kernels.expert_choice import choose_experts as choose_plainly

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.mixture.choose import choose_experts

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@pytest.mark.parametrize("is_renormalized", [False, True])
@pytest.mark.parametrize(("num_experts", "num_chosen"), [(8, 2), (6, 1), (5, 5), (130, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_choice_is_that_of_the_plain_form(
    dtype: torch.dtype, num_experts: int, num_chosen: int, is_renormalized: bool
) -> None:
    logits = (3 * torch.randn(7, num_experts, generator=torch.Generator().manual_seed(1))).to(dtype)
    expected = choose_plainly(logits, num_chosen, is_renormalized=is_renormalized)
    choice = choose_experts(logits, num_chosen, is_renormalized=is_renormalized)
    assert torch.equal(choice.expert_ids, expected.expert_ids)
    torch.testing.assert_close(choice.weights, expected.weights, rtol=1e-5, atol=1e-7)


def test_first_of_equal_experts_is_chosen() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    choice = choose_experts(logits, 3, is_renormalized=True)
    assert choice.expert_ids.tolist() == [[0, 1, 3], [0, 1, 2]]


def test_logits_that_are_no_numbers_show_in_the_weights_of_their_token_alone() -> None:
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    expected = choose_experts(logits, 2, is_renormalized=True)
    logits[1, 4] = math.nan
    choice = choose_experts(logits, 2, is_renormalized=True)
    assert choice.weights[1].isnan().all()
    assert choice.expert_ids[1].tolist() == [0, 1]  # experts that there are
    for row in (0, 2):
        assert torch.equal(choice.weights[row], expected.weights[row])


def test_no_tokens_choose_nothing() -> None:
    assert choose_experts(torch.empty(0, 4), 2, is_renormalized=True).expert_ids.shape == (0, 2)
