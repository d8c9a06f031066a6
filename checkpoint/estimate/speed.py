"""How fast a model can be at most, and how fast it may be expected to be."""

from __future__ import annotations

import msgspec

from ..placement import Placement
from .devices import DeviceSpec
from .roofline import OpCost, Work, decode, end_costs, layer_costs, prefill, seconds, stage_costs, step_seconds
from .served import Served

EXPECTED_SHARE = 0.7
"""What an engine is expected to reach of the limit: this one's goal for large batches, not a measured figure."""


class DecodeSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """So many requests that each compute a token a step.

    Attributes:
        num_requests: at once.
        context: tokens that each has in the KV cache.
        itl_ms: least time between two tokens of a request.
        tokens_per_s: most output tokens a second, of all requests together.
        expected_tokens_per_s: the expected share of that.
        bound_by: memory, compute or link: what most of the time goes by.
    """

    num_requests: int
    context: int
    itl_ms: float
    tokens_per_s: float
    expected_tokens_per_s: float
    bound_by: str


class RequestSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one length, an engine that always has as many as it may run.

    Attributes:
        num_requests: that run at once.
        prompt_tokens: of each.
        output_tokens: of each.
        first_token_ms: least time from an idle engine's start with a prompt to its first token.
        tokens_per_s: most output tokens a second, the time for prompts included.
        expected_tokens_per_s: the expected share of that.
    """

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    first_token_ms: float
    tokens_per_s: float
    expected_tokens_per_s: float


def decode_speed(
    served: Served, placement: Placement, device: DeviceSpec, num_requests: int, context: int, share: float
) -> DecodeSpeed:
    """Return the limit of steps that decode.

    Stages work at the same time on different requests: each sees its part of them at once.
    """
    work = decode(_a_stage(num_requests, placement), context)
    itl_s = step_seconds(served, placement, work, device)
    return DecodeSpeed(
        num_requests=num_requests,
        context=context,
        itl_ms=1e3 * itl_s,
        tokens_per_s=num_requests / itl_s,
        expected_tokens_per_s=share * num_requests / itl_s,
        bound_by=_bound_by(served, placement, device, work),
    )


def request_speed(
    served: Served,
    placement: Placement,
    device: DeviceSpec,
    num_requests: int,
    prompt_tokens: int,
    output_tokens: int,
    share: float,
) -> RequestSpeed:
    """Return the limit of requests with prompts: each costs its prefill, and its part of the decodes."""
    work = prefill(prompt_tokens)
    stage = seconds(layer_costs(served, placement, work), device)
    ends = seconds(end_costs(served, placement, work), device)
    hand_overs = seconds(stage_costs(served, placement, work), device)
    mean_context = prompt_tokens + (output_tokens + 1) // 2
    itl_s = step_seconds(served, placement, decode(_a_stage(num_requests, placement), mean_context), device)
    # The prefill gives the first token; prompts follow each other through the stages.
    request_s = stage + ends + (output_tokens - 1) * itl_s / num_requests
    return RequestSpeed(
        num_requests=num_requests,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        first_token_ms=1e3 * (placement.pp * stage + hand_overs + ends),
        tokens_per_s=output_tokens / request_s,
        expected_tokens_per_s=share * output_tokens / request_s,
    )


def step_table(served: Served, placement: Placement, num_requests: int, context: int) -> tuple[OpCost, ...]:
    """Return the ops of a decode step, for one device of a stage."""
    return _costs(served, placement, decode(_a_stage(num_requests, placement), context))


def _costs(served: Served, placement: Placement, work: Work) -> tuple[OpCost, ...]:
    return (
        *layer_costs(served, placement, work),
        *stage_costs(served, placement, work),
        *end_costs(served, placement, work),
    )


def _a_stage(num_requests: int, placement: Placement) -> int:
    return -(-num_requests // placement.pp)


def _bound_by(served: Served, placement: Placement, device: DeviceSpec, work: Work) -> str:
    times: dict[str, float] = {}
    for cost in _costs(served, placement, work):
        part = cost.bound_by(device)
        times[part] = times.get(part, 0.0) + cost.seconds(device)
    return max(times, key=lambda part: times[part])
