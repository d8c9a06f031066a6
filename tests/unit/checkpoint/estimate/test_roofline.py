"""Bytes and operations of a step, against numbers worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from pagewire.checkpoint.estimate.devices import find_device
from pagewire.checkpoint.estimate.roofline import (
    OpCost,
    Work,
    _pairs,
    decode,
    end_costs,
    kv_bytes_per_token,
    layer_costs,
    prefill,
    stage_costs,
    step_seconds,
)
from pagewire.checkpoint.estimate.served import KVLayout, Served
from pagewire.checkpoint.estimate.shapes import SHAPES
from pagewire.checkpoint.estimate.weights import format_bits
from pagewire.checkpoint.model_config import LayerKind
from pagewire.checkpoint.placement import Placement
from pagewire.checkpoint.stage_layers import stage_layers

FP16 = KVLayout(name="float16", bytes_a_value=2)
OF_8B = Served(model=SHAPES["llama-3.1-8b"].config, bits=format_bits("bfloat16"), kv=FP16)
OF_70B = Served(model=SHAPES["llama-3-70b"].config, bits=format_bits("float16"), kv=FP16)
H200 = find_device("h200")
ALONE = Placement()


def cost_of(name: str, served: Served, work: Work, placement: Placement = ALONE) -> OpCost:
    costs = (*layer_costs(served, placement, work), *end_costs(served, placement, work))
    return next(cost for cost in costs if cost.name == name)


def test_a_70b_request_of_4096_tokens_has_1_25_gib_of_keys_and_values() -> None:
    a_request = 4096 * kv_bytes_per_token(OF_70B, ALONE)
    assert a_request == 1.25 * 2**30
    assert 32 * a_request == 40 * 2**30
    with_all_heads = msgspec.structs.replace(OF_70B, model=msgspec.structs.replace(OF_70B.model, num_kv_heads=64))
    assert 4096 * kv_bytes_per_token(with_all_heads, ALONE) == 10 * 2**30


def test_fp8_halves_keys_and_values_and_devices_share_them() -> None:
    in_8_bits = msgspec.structs.replace(OF_70B, kv=KVLayout(name="fp8", bytes_a_value=1))
    assert 2 * kv_bytes_per_token(in_8_bits, ALONE) == kv_bytes_per_token(OF_70B, ALONE)
    assert 8 * kv_bytes_per_token(OF_70B, Placement(tp=8)) == kv_bytes_per_token(OF_70B, ALONE)
    assert kv_bytes_per_token(OF_70B, Placement(tp=16)) == kv_bytes_per_token(OF_70B, Placement(tp=8))


def test_keys_and_values_are_those_of_the_stage_with_most_layers() -> None:
    longest = max(map(len, stage_layers(OF_70B.model, 2)))
    assert longest > OF_70B.model.num_layers / 2, "the last stage has fewer: it reads the output layer too"
    a_layer = kv_bytes_per_token(OF_70B, Placement(tp=4)) // OF_70B.model.num_layers
    assert kv_bytes_per_token(OF_70B, Placement(tp=4, pp=2)) == longest * a_layer


def test_the_matrices_of_a_decode_are_read_once() -> None:
    gate_up = cost_of("gate and up", OF_8B, decode(256, 1024))
    assert gate_up.count == 32
    assert gate_up.num_bytes == 2 * 28_672 * 4096 + 2 * 256 * (28_672 + 4096)
    assert gate_up.operations == 2 * 256 * 28_672 * 4096


MIXTURE = Served(model=SHAPES["mixtral-8x7b"].config, bits=format_bits("bfloat16"), kv=FP16)


def test_one_token_reads_the_experts_that_it_chooses() -> None:
    gate_up = cost_of("experts, gate and up", MIXTURE, decode(1, 1024))
    assert gate_up.count == 32
    assert gate_up.num_bytes == pytest.approx(2 * (2 * 28_672 * 4096 + 2 * (28_672 + 4096)))
    assert gate_up.operations == 2 * 2 * 28_672 * 4096
    assert cost_of("router", MIXTURE, decode(1, 1024)).operations == 2 * 8 * 4096


def test_many_tokens_read_all_experts_once() -> None:
    down = cost_of("experts, down", MIXTURE, decode(256, 1024))
    assert down.num_bytes == pytest.approx(2 * 8 * 14_336 * 4096 + 2 * 512 * (14_336 + 4096))
    assert down.operations == 2 * 512 * 14_336 * 4096
    # Two tokens share an expert as often as two draws of 2 of 8 do.
    pair = cost_of("experts, down", MIXTURE, decode(2, 1024)).num_bytes - 2 * 4 * (14_336 + 4096)
    assert pair == pytest.approx(2 * (8 - 8 * 0.75**2) * 14_336 * 4096)


@pytest.mark.parametrize("pp", [1, 2, 3])
def test_dense_layers_and_mixtures_of_a_stage_are_its_layers(pp: int) -> None:
    mixture = msgspec.structs.replace(MIXTURE.model.mixture, layers=tuple(range(1, 32, 2)))
    mixed = msgspec.structs.replace(MIXTURE, model=msgspec.structs.replace(MIXTURE.model, mixture=mixture))
    counts = {cost.name: cost.count for cost in layer_costs(mixed, Placement(pp=pp), decode(8, 4096))}
    assert counts["experts, down"] == counts["router"] == -(-16 // pp)
    assert counts["experts, down"] + counts["down"] == counts["qkv"]


def test_attention_of_a_decode_reads_what_is_cached() -> None:
    attention = cost_of("attention", OF_8B, decode(256, 1024))
    cached, own = 256 * 1024 * 4096, 256 * 4096
    assert attention.num_bytes == cached + own + 2 * 256 * 4096 * 2
    assert attention.operations == 4 * 256 * 1024 * 4096


def test_a_causal_prefill_sees_half_of_the_square() -> None:
    attention = cost_of("attention", OF_8B, prefill(1000))
    assert attention.operations == 4 * (1000 * 1001 // 2) * 4096


@pytest.mark.parametrize("window", [None, 1, 3, 7, 64])
@pytest.mark.parametrize(("num_tokens", "context"), [(1, 1), (1, 9), (4, 4), (5, 9), (9, 9), (3, 100)])
def test_pairs_are_those_of_the_mask(window: int | None, num_tokens: int, context: int) -> None:
    counted = sum(
        1
        for query in range(context - num_tokens, context)
        for key in range(query + 1)
        if window is None or key > query - window
    )
    assert _pairs(Work(num_requests=1, num_tokens=num_tokens, context=context), window) == counted


def test_a_window_bounds_what_is_read() -> None:
    model = msgspec.structs.replace(
        OF_8B.model, sliding_window=512, layer_kinds=(LayerKind.SLIDING,) * 16 + (LayerKind.FULL,) * 16
    )
    mixed = msgspec.structs.replace(OF_8B, model=model)
    full, windowed = (cost_of(name, mixed, decode(8, 4096)) for name in ("attention", "attention, window of 512"))
    assert (full.count, windowed.count) == (16, 16)
    assert full.operations == 8 * windowed.operations
    assert kv_bytes_per_token(mixed, ALONE) == kv_bytes_per_token(OF_8B, ALONE)


@pytest.mark.parametrize(("num_full", "num_sliding"), [(16, 16), (10, 52), (3, 3), (1, 9), (9, 1), (5, 0), (0, 5)])
@pytest.mark.parametrize("pp", [1, 2, 3, 4, 5])
def test_the_kinds_of_a_stage_are_its_layers(num_full: int, num_sliding: int, pp: int) -> None:
    kinds = (LayerKind.FULL,) * num_full + (LayerKind.SLIDING,) * num_sliding
    model = msgspec.structs.replace(OF_8B.model, num_layers=len(kinds), layer_kinds=kinds, sliding_window=512)
    mixed = msgspec.structs.replace(OF_8B, model=model)
    costs = layer_costs(mixed, Placement(pp=pp), decode(8, 4096))
    counts = {cost.name: cost.count for cost in costs}
    assert counts.get("attention", 0) + counts.get("attention, window of 512", 0) == counts["qkv"]
    assert all(counts.values())


def test_each_op_takes_the_larger_of_its_bytes_and_its_operations() -> None:
    small = OpCost(name="small", count=3, num_bytes=4.8e9, operations=989e6)
    large = OpCost(name="large", count=3, num_bytes=4.8e6, operations=989e9)
    far = OpCost(name="far", count=3, num_bytes=4.8e6, operations=0, link_bytes=450e6)
    assert [cost.seconds(H200) for cost in (small, large)] == pytest.approx([3e-3] * 2)
    assert far.seconds(H200) == pytest.approx(3e-3 + 3 * H200.link_delay_s)
    assert [cost.bound_by(H200) for cost in (small, large, far)] == ["memory", "compute", "link"]


def test_one_request_is_bound_by_the_weights() -> None:
    # 15.0 GB without the embedding's rows at 4.8 TB/s.
    weights_s = 2 * (8.030e9 - 128_256 * 4096) / 4.8e12
    assert step_seconds(OF_8B, ALONE, decode(1, 1), H200) == pytest.approx(weights_s, rel=0.01)


def test_a_long_prefill_is_bound_by_operations() -> None:
    matrices_s = 2 * 8192 * 6.98e9 / 989e12
    attention_s = 32 * 4 * (8192 * 8193 // 2) * 4096 / 989e12
    assert step_seconds(OF_8B, ALONE, prefill(8192), H200) == pytest.approx(matrices_s + attention_s, rel=0.01)


def test_two_devices_take_half_and_what_they_tell_each_other() -> None:
    work, pair = decode(64, 1024), Placement(tp=2)
    alone, shared = (step_seconds(OF_70B, placement, work, H200) for placement in (ALONE, pair))
    sums = cost_of("sums between devices", OF_70B, work, pair)
    assert sums.count == 160
    assert sums.link_bytes == 64 * 8192 * 2
    assert alone / 2 < shared < alone / 2 + 3 * sums.seconds(H200)


def test_stages_pass_a_step_on() -> None:
    work = decode(8, 1024)
    alone, staged = (step_seconds(OF_70B, placement, work, H200) for placement in (ALONE, Placement(pp=4)))
    (hand_over,) = stage_costs(OF_70B, Placement(pp=4), work)
    assert hand_over.count == 3
    assert hand_over.link_bytes == 8 * 8192 * 2
    assert staged == pytest.approx(alone + hand_over.seconds(H200), rel=1e-6)
    assert stage_costs(OF_70B, ALONE, work) == ()


@pytest.mark.parametrize(("placement", "is_between"), [(Placement(tp=4, pp=2), False), (Placement(tp=8, pp=2), True)])
def test_stages_are_on_other_machines_if_one_is_too_small_for_all(placement: Placement, is_between: bool) -> None:
    (hand_over,) = stage_costs(OF_70B, placement, decode(8, 1024))
    assert hand_over.between_machines is is_between
    near, far = (hand_over.link_bytes / rate for rate in (H200.link_bandwidth, H200.machine_bandwidth))
    expected = far + H200.machine_delay_s if is_between else near + H200.link_delay_s
    assert hand_over.seconds(H200) == pytest.approx(expected)


def test_sums_of_more_devices_than_a_machine_has_go_between_machines() -> None:
    work = decode(1, 1024)
    assert not cost_of("sums between devices", OF_70B, work, Placement(tp=8)).between_machines
    assert cost_of("sums between devices", OF_70B, work, Placement(tp=16)).between_machines


def test_lower_bits_lower_bytes_and_not_operations() -> None:
    in_4_bits = msgspec.structs.replace(OF_8B, bits=format_bits("int4"))
    dense, packed = (cost_of("down", one, decode(1, 1)) for one in (OF_8B, in_4_bits))
    assert packed.num_bytes / dense.num_bytes == pytest.approx(5 / 16, rel=1e-2)
    assert packed.operations == dense.operations
