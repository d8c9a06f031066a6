"""How a model may be divided."""

from __future__ import annotations

import msgspec
import pytest

from pagewire.checkpoint.estimate.shapes import SHAPES
from pagewire.checkpoint.placement import (
    Placement,
    candidate_placements,
    check_placement,
    kv_heads_a_device,
    layers_a_stage,
)
from pagewire.ipc.errors import ConfigError

SMALL = SHAPES["smollm2-135m"].config
LARGE = SHAPES["llama-3-70b"].config


def test_only_divisors_of_the_shape_are_candidates() -> None:
    assert candidate_placements(SMALL) == [Placement()]  # 9 heads
    assert [(one.tp, one.pp) for one in candidate_placements(LARGE, max_machines=3)] == [
        (1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("placement", "part"),
    [
        (Placement(tp=2), "9 heads"),
        (Placement(tp=9), "9 heads and the 1536 channels.*possible are 1, 3[.]"),
        (Placement(pp=31), "30 layers"),
    ],
)
def test_what_does_not_divide_is_refused_by_its_numbers(placement: Placement, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        check_placement(SMALL, placement)
    check_placement(SMALL, Placement(tp=3, pp=30))


def test_kv_heads_that_are_no_multiple_are_refused() -> None:
    model = msgspec.structs.replace(LARGE, num_kv_heads=4, num_heads=24, intermediate_size=960)
    with pytest.raises(ConfigError, match="4 KV heads"):
        check_placement(model, Placement(tp=6))


def test_more_devices_than_kv_heads_keep_copies() -> None:
    assert kv_heads_a_device(LARGE, Placement(tp=4)) == 2
    assert kv_heads_a_device(LARGE, Placement(tp=16)) == 1


def test_the_longest_stage_counts() -> None:
    assert layers_a_stage(LARGE, Placement(pp=3)) == 27
