"""From the time of steps to tokens a second."""

from __future__ import annotations

import pytest

from pagewire.checkpoint.estimate.devices import find_device
from pagewire.checkpoint.estimate.served import KVLayout, Served
from pagewire.checkpoint.estimate.shapes import SHAPES
from pagewire.checkpoint.estimate.speed import decode_speed, request_speed, step_table
from pagewire.checkpoint.estimate.weights import format_bits
from pagewire.checkpoint.placement import Placement

OF_8B = Served(
    model=SHAPES["llama-3.1-8b"].config,
    bits=format_bits("bfloat16"),
    kv=KVLayout(name="bfloat16", bytes_a_value=2),
)
A100, H200 = find_device("a100"), find_device("h200")


def test_tokens_a_second_are_requests_by_the_step() -> None:
    speed = decode_speed(OF_8B, Placement(), H200, 64, 1024, 0.7)
    assert speed.tokens_per_s == pytest.approx(64e3 / speed.itl_ms)
    assert speed.expected_tokens_per_s == pytest.approx(0.7 * speed.tokens_per_s)
    assert speed.bound_by == "memory"


def test_throughput_grows_with_the_batch_and_so_does_the_latency() -> None:
    speeds = [decode_speed(OF_8B, Placement(), H200, batch, 1024, 1.0) for batch in (1, 16, 64, 256)]
    assert [speed.tokens_per_s for speed in speeds] == sorted(speed.tokens_per_s for speed in speeds)
    assert [speed.itl_ms for speed in speeds] == sorted(speed.itl_ms for speed in speeds)


def test_known_limits_of_one_request() -> None:
    # 15 GB of weights at 2.04 and 4.8 TB/s.
    assert decode_speed(OF_8B, Placement(), A100, 1, 128, 1.0).itl_ms == pytest.approx(7.4, abs=0.1)
    assert decode_speed(OF_8B, Placement(), H200, 1, 128, 1.0).itl_ms == pytest.approx(3.14, abs=0.05)


def test_stages_share_the_batch() -> None:
    staged, whole = (
        decode_speed(OF_8B, placement, H200, 64, 1024, 1.0) for placement in (Placement(pp=2), Placement())
    )
    quarter = decode_speed(OF_8B, Placement(), H200, 32, 1024, 1.0)
    hand_over_ms = 1e3 * (32 * 4096 * 2 / H200.link_bandwidth + H200.link_delay_s)
    assert staged.itl_ms == pytest.approx(quarter.itl_ms + hand_over_ms)
    assert staged.tokens_per_s > whole.tokens_per_s


def test_prompts_cost_throughput() -> None:
    short, long = (request_speed(OF_8B, Placement(), H200, 64, prompt, 256, 1.0) for prompt in (16, 4096))
    alone = decode_speed(OF_8B, Placement(), H200, 64, 16 + 128, 1.0)
    assert long.tokens_per_s < short.tokens_per_s < alone.tokens_per_s * 1.01
    assert long.first_token_ms > 10 * short.first_token_ms / 2


def test_the_table_of_a_step_adds_up_to_its_time() -> None:
    ops = step_table(OF_8B, Placement(), 64, 1024)
    speed = decode_speed(OF_8B, Placement(), H200, 64, 1024, 1.0)
    assert sum(op.seconds(H200) for op in ops) * 1e3 == pytest.approx(speed.itl_ms)
