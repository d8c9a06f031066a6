"""Known answers: what the field knows of these models has to come out, whatever the formulas are."""

from __future__ import annotations

import pytest

from pagewire.checkpoint.estimate.devices import find_device
from pagewire.checkpoint.estimate.memory import plan_memory
from pagewire.checkpoint.estimate.served import KVLayout, Served
from pagewire.checkpoint.estimate.shapes import SHAPES
from pagewire.checkpoint.estimate.sizing import Demand, Option, compare_options, least_option
from pagewire.checkpoint.estimate.weights import WeightFormat, format_bits
from pagewire.checkpoint.placement import Placement

ONE = Demand(num_requests=1, context=4096)


def served(shape: str, weights: WeightFormat = "bfloat16", kv_bytes: int = 2) -> Served:
    kv = KVLayout(name="of the test", bytes_a_value=kv_bytes)
    return Served(model=SHAPES[shape].config, bits=format_bits(weights), kv=kv)


def least(shape: str, weights: WeightFormat, device: str) -> Option:
    return least_option(served(shape, weights), find_device(device), ONE)


@pytest.mark.parametrize("device", ["a100", "h100"])
@pytest.mark.parametrize(("weights", "num_devices"), [("float16", 2), ("int4", 1)])
def test_70b_takes_two_80_gb_devices_in_16_bits_and_one_in_4(
    device: str, weights: WeightFormat, num_devices: int
) -> None:
    placement = least("llama-3-70b", weights, device).placement
    assert placement is not None
    assert placement.num_devices == num_devices


def test_405b_in_bfloat16_does_not_fit_eight_80_gb_devices() -> None:
    plan = plan_memory(served("llama-3.1-405b"), Placement(tp=8), find_device("h100"))
    assert plan.kv < 0
    assert plan.max_requests(16) == 0


@pytest.mark.parametrize(
    ("weights", "device", "placement"),
    [
        ("bfloat16", "h100", Placement(tp=8, pp=2)),
        ("bfloat16", "h200", Placement(tp=8)),
        ("bfloat16", "mi300x", Placement(tp=8)),
        ("fp8", "h100", Placement(tp=8)),
    ],
)
def test_what_405b_does_fit(weights: WeightFormat, device: str, placement: Placement) -> None:
    assert least("llama-3.1-405b", weights, device).placement == placement


@pytest.mark.parametrize(
    ("shape", "weights", "device", "num_devices"),
    [
        ("llama-3.1-8b", "bfloat16", "l4", 1),  # 15 GiB of 22.5, and room for some requests
        ("llama-3.1-8b", "bfloat16", "v100-16gb", 2),
        ("llama-3.1-8b", "int4", "v100-16gb", 1),
        ("llama-2-13b", "float16", "l40s", 1),
        ("llama-3.1-70b", "bfloat16", "h200", 2),  # 131 of 140 GiB of weights leave nothing to work with
        ("llama-3.1-70b", "bfloat16", "mi300x", 1),
        ("llama-3.1-70b", "fp8", "h200", 1),
        ("smollm2-135m", "bfloat16", "t4", 1),
    ],
)
def test_how_many_devices(shape: str, weights: WeightFormat, device: str, num_devices: int) -> None:
    placement = least(shape, weights, device).placement
    assert placement is not None
    assert placement.num_devices == num_devices


def test_more_requests_take_more_devices() -> None:
    device, of_8b = find_device("l4"), served("llama-3.1-8b")
    counts = []
    for num_requests in (1, 16, 64):
        placement = least_option(of_8b, device, Demand(num_requests=num_requests, context=4096)).placement
        assert placement is not None
        counts.append(placement.num_devices)
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_what_no_usual_number_of_devices_holds_is_said() -> None:
    option = least_option(served("llama-3.1-405b"), find_device("t4"), Demand(num_requests=200, context=131_072))
    assert option.placement is None
    assert option.weight_bytes == pytest.approx(2 * 405.85e9, rel=1e-3)


def test_the_comparison_has_each_device_with_formats_that_take_less() -> None:
    options = compare_options(served("llama-3-8b"), [find_device("a100"), find_device("l4")], ONE)
    assert [(option.device, option.weights) for option in options] == [
        (device, weights) for device in ("a100", "l4") for weights in ("bfloat16", "fp8", "int4")
    ]
    in_4_bits = compare_options(served("llama-3-8b", "int4"), [find_device("l4")], ONE)
    assert [option.weights for option in in_4_bits] == ["int4"]
