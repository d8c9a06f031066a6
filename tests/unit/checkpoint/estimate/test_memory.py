"""What is left for keys and values, and whom it holds."""

from __future__ import annotations

import msgspec
import pytest

from pagewire.checkpoint.estimate.devices import find_device
from pagewire.checkpoint.estimate.memory import plan_memory
from pagewire.checkpoint.estimate.served import KVLayout, Served
from pagewire.checkpoint.estimate.shapes import SHAPES
from pagewire.checkpoint.estimate.weights import format_bits
from pagewire.checkpoint.placement import Placement


def served(shape: str, kv_bytes: int = 2) -> Served:
    kv = KVLayout(name="of the test", bytes_a_value=kv_bytes)
    return Served(model=SHAPES[shape].config, bits=format_bits("bfloat16"), kv=kv)


def test_longest_context_grows_with_what_is_left_and_ends_at_the_models() -> None:
    of_8b, device = served("llama-3.1-8b"), find_device("l4")
    alone = plan_memory(of_8b, Placement(), device).longest_context(1, 131_072)
    shared = plan_memory(of_8b, Placement(), device).longest_context(4, 131_072)
    in_8_bits = plan_memory(served("llama-3.1-8b", kv_bytes=1), Placement(), device).longest_context(1, 131_072)
    assert 4 * shared <= alone < in_8_bits < 131_072
    assert plan_memory(of_8b, Placement(), find_device("h200")).longest_context(1, 131_072) == 131_072


def test_a_longest_context_fits_and_one_block_more_does_not() -> None:
    plan = plan_memory(served("llama-3.1-8b"), Placement(), find_device("l4"))
    for num_requests in (1, 3, 10):
        longest = plan.longest_context(num_requests, 10**9)
        assert plan.max_requests(longest) >= num_requests
        assert plan.max_requests(longest + 16) < num_requests


def test_a_smaller_share_of_the_memory_holds_less() -> None:
    whole = served("llama-3.1-8b")
    half = msgspec.structs.replace(whole, utilization=0.45)
    plans = [plan_memory(one, Placement(), find_device("h200")) for one in (whole, half)]
    assert plans[0].kv - plans[1].kv == pytest.approx(0.45 * 143_771 * 2**20, rel=1e-9)


def test_the_parts_add_up_to_what_may_be_used():
    plan = plan_memory(served("llama-3.1-8b"), Placement(), find_device("h200"))
    assert plan.usable == int(0.9 * plan.total)
    assert plan.weights + plan.runtime + plan.workspace + plan.graphs + plan.kv == plan.usable
    assert plan.num_blocks * 16 * plan.kv_bytes_per_token <= plan.kv


def test_a_larger_step_leaves_less():
    small = served("llama-3.1-8b")
    large = msgspec.structs.replace(small, limits=msgspec.structs.replace(small.limits, max_num_batched_tokens=32_768))
    plans = [plan_memory(one, Placement(), find_device("h200")) for one in (small, large)]
    assert plans[1].workspace > 3 * plans[0].workspace
    assert plans[1].kv < plans[0].kv


def test_devices_share_the_logits_as_the_roofline_has_it() -> None:
    few = served("llama-3.1-8b")
    many = msgspec.structs.replace(few, limits=msgspec.structs.replace(few.limits, max_num_seqs=1024))
    more = 1024 - few.limits.max_num_seqs
    for tp in (1, 8):
        plans = [plan_memory(one, Placement(tp=tp), find_device("h200")) for one in (few, many)]
        assert plans[1].workspace - plans[0].workspace == 2 * 4 * more * 128_256 // tp


def test_too_large_a_model_leaves_less_than_nothing():
    plan = plan_memory(served("llama-3-70b"), Placement(), find_device("l4"))
    assert plan.kv < 0
    assert (plan.num_blocks, plan.max_requests(1), plan.longest_context(1, 8192)) == (0, 0, 0)
