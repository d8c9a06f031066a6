"""Which experts compute a token."""

from __future__ import annotations

import torch

from pagewire.gpu_executor.kernels.expert_choice import choose_experts


def test_the_likeliest_are_chosen_and_weighed_by_their_probability():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    choice = choose_experts(logits, 2, is_renormalized=False)
    assert choice.expert_ids.tolist() == [[1, 3]]
    torch.testing.assert_close(choice.weights, logits.softmax(dim=-1)[:, [1, 3]])


def test_weights_may_be_made_to_add_up_to_one():
    choice = choose_experts(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)), 3, is_renormalized=True)
    torch.testing.assert_close(choice.weights.sum(dim=-1), torch.ones(50))


def test_experts_come_in_their_own_order_whatever_their_weights():
    choice = choose_experts(torch.tensor([[5.0, 0.0, 9.0, 7.0], [1.0, 2.0, 3.0, 4.0]]), 3, is_renormalized=True)
    assert choice.expert_ids.tolist() == [[0, 2, 3], [1, 2, 3]]
    assert choice.weights[0].argmax() == 1


def test_of_equals_the_lower_number_is_chosen():
    logits = torch.zeros(4, 16)
    logits[1, 5] = 1.0
    choice = choose_experts(logits, 3, is_renormalized=True)
    assert choice.expert_ids.tolist() == [[0, 1, 2], [0, 1, 5], [0, 1, 2], [0, 1, 2]]


def test_a_tokens_choice_has_the_same_bits_in_any_batch():
    logits = torch.randn(64, 60, generator=torch.Generator().manual_seed(1))
    whole = choose_experts(logits, 8, is_renormalized=True)
    for first, last in ((0, 1), (3, 10), (17, 64), (63, 64)):
        part = choose_experts(logits[first:last], 8, is_renormalized=True)
        assert torch.equal(part.expert_ids, whole.expert_ids[first:last])
        assert torch.equal(part.weights, whole.weights[first:last])
