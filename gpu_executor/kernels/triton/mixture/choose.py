"""The experts of each token: a softmax over a row of the router's logits, and its best few.

Each token is one program's, which orders its sums by the number of experts alone.

Source: Shazeer et al. 2017 (arXiv 1701.06538).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...expert_choice import ExpertChoice
from ..launches.mixture import CHOOSE_EXPERTS
from ..launches.row import CompileCase, LaunchRow, pick


@triton.jit
def choose_experts_kernel(
    logits: tl.tensor,
    expert_ids: tl.tensor,
    weights: tl.tensor,
    NUM_EXPERTS: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    IS_RENORMALIZED: tl.constexpr,
    PADDED_EXPERTS: tl.constexpr,
) -> None:
    """Choose those of one token; they are written in the order of their numbers."""
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, PADDED_EXPERTS)
    is_expert = expert < NUM_EXPERTS
    values = tl.load(logits + row * NUM_EXPERTS + expert, mask=is_expert, other=-float("inf")).to(tl.float32)
    exponentials = tl.where(is_expert, tl.exp(values - tl.max(values, axis=0)), 0.0)
    probabilities = exponentials / tl.sum(exponentials, axis=0)
    # Where logits are no numbers some experts are chosen all the same, and their weights say that they are none.
    left = tl.where(probabilities == probabilities, probabilities, 0.0)
    left = tl.where(is_expert, left, -1.0)
    is_chosen = expert < 0
    for _ in tl.static_range(NUM_CHOSEN):
        is_best = left == tl.max(left, axis=0)
        is_first = expert == tl.min(tl.where(is_best, expert, PADDED_EXPERTS), axis=0)
        is_chosen = is_chosen | is_first
        left = tl.where(is_first, -1.0, left)
    shares = tl.where(is_chosen, probabilities, 0.0)
    if IS_RENORMALIZED:
        shares = shares / tl.sum(shares, axis=0)
    place = row * NUM_CHOSEN + tl.cumsum(is_chosen.to(tl.int32), axis=0) - 1
    tl.store(expert_ids + place, expert.to(tl.int64), mask=is_chosen)
    tl.store(weights + place, shares, mask=is_chosen)


def choose_experts(logits: Tensor, num_chosen: int, *, is_renormalized: bool) -> ExpertChoice:
    """Choose the likeliest experts of each token; see `expert_choice.choose_experts`.

    Args:
        logits: [num_tokens, num_experts], any float dtype.
        num_chosen: experts a token.
        is_renormalized: weights are divided by their sum.
    """
    num_tokens, num_experts = logits.shape
    expert_ids = torch.empty(num_tokens, num_chosen, dtype=torch.int64, device=logits.device)
    weights = torch.empty(num_tokens, num_chosen, dtype=torch.float32, device=logits.device)
    if num_tokens > 0:
        row = pick(CHOOSE_EXPERTS)
        choose_experts_kernel[(num_tokens,)](
            logits.contiguous(),
            expert_ids,
            weights,
            NUM_EXPERTS=num_experts,
            NUM_CHOSEN=num_chosen,
            IS_RENORMALIZED=is_renormalized,
            PADDED_EXPERTS=triton.next_power_of_2(num_experts),
            num_warps=row.num_warps,
            num_stages=row.num_stages,
        )
    return ExpertChoice(expert_ids, weights)


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: models' numbers of experts, in each dtype."""
    return [
        CompileCase(
            label=f"{num_chosen} of {num_experts}, {dtype}",
            function=choose_experts_kernel,
            signature={"logits": f"*{dtype}", "expert_ids": "*i64", "weights": "*fp32"},
            constants={"NUM_EXPERTS": num_experts, "NUM_CHOSEN": num_chosen, "IS_RENORMALIZED": True}
            | {"PADDED_EXPERTS": triton.next_power_of_2(num_experts)},
            has_dot=False,
        )
        for dtype, num_chosen, num_experts in (("bf16", 8, 128), ("fp16", 2, 8), ("fp32", 4, 60))
    ]
