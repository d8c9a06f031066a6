"""Add up what a token's experts give, each times its weight, in the order of experts and in float32."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ...expert_choice import ExpertChoice
from ..launches.mixture import COMBINE_EXPERTS
from ..launches.row import CompileCase, LaunchRow, pick


@triton.jit(do_not_specialize=["first_expert", "num_experts"])
def combine_experts_kernel(
    outputs: tl.tensor,
    expert_ids: tl.tensor,
    weights: tl.tensor,
    total: tl.tensor,
    hidden_size: tl.tensor,
    first_expert: tl.tensor,
    num_experts: tl.tensor,
    NUM_CHOSEN: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """Add BLOCK_SIZE channels of one token; experts that other ranks hold add nothing, and their rows are not read."""
    token = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    added = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    for place in tl.static_range(NUM_CHOSEN):
        pair = token * NUM_CHOSEN + place
        expert = tl.load(expert_ids + pair).to(tl.int32) - first_expert
        is_here = (expert >= 0) & (expert < num_experts)
        weight = tl.where(is_here, tl.load(weights + pair), 0.0)
        end = tl.where(is_here, hidden_size, 0)
        output = tl.load(outputs + pair * hidden_size + channels, mask=channels < end, other=0.0)
        added += output.to(tl.float32) * weight
    tl.store(total + token * hidden_size + channels, added.to(total.dtype.element_ty), mask=channels < hidden_size)


def combine_experts(outputs: Tensor, choice: ExpertChoice, num_experts: int, first_expert: int, total: Tensor) -> None:
    """Add up the outputs of each token's experts.

    Args:
        outputs: [num_tokens * num_chosen, hidden_size], any float dtype, contiguous; rows of experts that are not here
            are undefined.
        choice: of all experts, contiguous.
        num_experts: that are here.
        first_expert: which of all experts the first of them is.
        total: [num_tokens, hidden_size], contiguous; written.
    """
    num_tokens, num_chosen = choice.expert_ids.shape
    hidden_size = outputs.shape[1]
    row = pick(COMBINE_EXPERTS)
    combine_experts_kernel[(num_tokens, triton.cdiv(hidden_size, row.constants["BLOCK_SIZE"]))](
        outputs,
        choice.expert_ids,
        choice.weights,
        total,
        hidden_size,
        first_expert,
        num_experts,
        NUM_CHOSEN=num_chosen,
        **row.constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: one a dtype."""
    return [
        CompileCase(
            label=f"{dtype}, {num_chosen} a token",
            function=combine_experts_kernel,
            signature={"outputs": f"*{dtype}", "expert_ids": "*i64", "weights": "*fp32", "total": f"*{dtype}"}
            | {"hidden_size": "i32:16", "first_expert": "i32", "num_experts": "i32"},
            constants={**row.constants, "NUM_CHOSEN": num_chosen},
            has_dot=False,
        )
        for dtype, num_chosen in (("bf16", 8), ("fp16", 2), ("fp32", 4))
    ]
