"""Mixtures on the Triton kernels: the experts of the reference, in every layout, and a token's bits its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.expert_choice import ExpertChoice, choose_experts
from pagewire.gpu_executor.kernels.layouts import ExpertWeights, LinearWeight, MixtureWeights, StackedWeight
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from tests.support.planted import PRECISION_ERRORS, assert_notices
from tests.support.products import random_rows
from tests.support.weights import permuted, random_dense, random_fp8, random_int4, random_int8, with_large_groups

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.launches import mixture as launches
from pagewire.gpu_executor.kernels.triton.mixture import experts as grouped
from pagewire.gpu_executor.kernels.triton.mixture.experts import group_experts
from pagewire.gpu_executor.kernels.triton.triton_ops import TritonOps

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory"),
    pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning"),  # of large gates, which are shut
]

HIDDEN, SIZE, NUM_EXPERTS, NUM_CHOSEN = 96, 64, 5, 2
Make = Callable[..., LinearWeight]


def dense(out_features: int, in_features: int, *, seed: int) -> LinearWeight:
    return random_dense(out_features, in_features, seed=seed)


def int4_of_128(out_features: int, in_features: int, *, seed: int) -> LinearWeight:
    return with_large_groups(random_int4(out_features, in_features, seed=seed), 128)


def fp8_rows(out_features: int, in_features: int, *, seed: int) -> LinearWeight:
    return random_fp8(out_features, in_features, 1, in_features, seed=seed)


def fp8_tiles(out_features: int, in_features: int, *, seed: int) -> LinearWeight:
    return random_fp8(out_features, in_features, 128, 128, seed=seed)


def stacked(out_features: int, in_features: int, *, seed: int) -> LinearWeight:
    first = out_features // 2 + 3
    return StackedWeight((
        random_int8(first, in_features, seed=seed), random_int4(out_features - first, in_features, seed=seed + 50),
    ))  # fmt: skip


LAYOUTS: dict[str, Make] = {
    "dense": dense, "int4": random_int4, "int4 of 128": int4_of_128, "int8": random_int8,
    "int8 with minimum": partial(random_int8, has_minimum=True), "fp8 rows": fp8_rows, "fp8 tiles": fp8_tiles,
    "stacked": stacked,
}  # fmt: skip


def mixture(make: Make, *, num_experts: int = NUM_EXPERTS, first_expert: int = 0, prepared_by: Ops) -> MixtureWeights:
    """Experts of random matrices; of all NUM_EXPERTS, so many from `first_expert` on."""
    return MixtureWeights(
        norm=torch.ones(HIDDEN),
        norm_eps=1e-5,
        router=random_dense(NUM_EXPERTS, HIDDEN),
        experts=tuple(
            ExpertWeights(
                gate_up=prepared_by.prepare_weight(make(2 * SIZE, HIDDEN, seed=index)),
                down=prepared_by.prepare_weight(make(HIDDEN, SIZE, seed=100 + index)),
            )
            for index in range(first_expert, first_expert + num_experts)
        ),
        first_expert=first_expert,
        num_chosen=NUM_CHOSEN,
        is_renormalized=True,
    )


def triton_ops(*, is_batch_invariant: bool = False) -> TritonOps:
    return TritonOps(torch.device("cpu"), is_batch_invariant=is_batch_invariant, attention_backend="triton")


def rows_and_choice(num_tokens: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ExpertChoice]:
    generator = torch.Generator().manual_seed(7)
    x = random_rows(num_tokens, HIDDEN, dtype) / 64  # gates of random weights stay within what exp can take
    return x, choose_experts(
        2 * torch.randn(num_tokens, NUM_EXPERTS, generator=generator), NUM_CHOSEN, is_renormalized=True
    )


def assert_near(out: Tensor, expected: Tensor) -> None:
    """Fail unless each row is near; a row's numbers are sums over all channels, large and small."""
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3}[out.dtype]
    error = (out - expected).abs() / expected.abs().amax(dim=1, keepdim=True)
    assert error.nan_to_num(torch.inf).max() <= tolerance, f"off by {error.max():.2e}"


@pytest.mark.parametrize("name", LAYOUTS)
def test_experts_are_those_of_the_reference(name: str) -> None:
    ops, reference = triton_ops(), ReferenceOps()
    x, choice = rows_and_choice(9)
    expected = reference.experts(x, choice, mixture(LAYOUTS[name], prepared_by=reference))
    weights = mixture(LAYOUTS[name], prepared_by=ops)
    assert group_experts(weights) is not None
    out = ops.experts(x, choice, weights)
    assert_near(out, expected)
    if name == "dense":
        compare = partial(assert_near, expected=expected)
        assert_notices(compare, out)
        assert_notices(compare, out, planted=PRECISION_ERRORS)


@pytest.mark.parametrize("name", ["dense", "int4"])
@pytest.mark.parametrize("row", [0, 1])
def test_experts_are_right_by_each_launch_row(name: str, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"dense": launches.GROUPED_DENSE, "int4": launches.GROUPED_QUANTIZED}[name]
    path = "pagewire.gpu_executor.kernels.triton.mixture.grouped_product.pick"
    monkeypatch.setattr(path, lambda table, **shape: rows[row])
    ops, reference = triton_ops(), ReferenceOps()
    x, choice = rows_and_choice(70)
    expected = reference.experts(x, choice, mixture(LAYOUTS[name], prepared_by=reference))
    assert_near(ops.experts(x, choice, mixture(LAYOUTS[name], prepared_by=ops)), expected)


@pytest.mark.parametrize("name", ["dense", "int4"])
def test_products_of_16_bits_add_in_float32(name: str) -> None:
    ops, reference = triton_ops(), ReferenceOps()
    x, choice = rows_and_choice(6, torch.float16)
    expected = reference.experts(x.float(), choice, mixture(LAYOUTS[name], prepared_by=reference))
    assert_near(ops.experts(x, choice, mixture(LAYOUTS[name], prepared_by=ops)), expected.half())


def test_ranks_with_some_experts_add_up_to_all() -> None:
    ops = triton_ops()
    x, choice = rows_and_choice(9)
    whole = ops.experts(x, choice, mixture(dense, prepared_by=ops))
    parts = [
        ops.experts(x, choice, mixture(dense, num_experts=count, first_expert=first, prepared_by=ops))
        for first, count in ((0, 2), (2, 3), (5, 0))
    ]
    assert not parts[2].any()
    assert_near(parts[0] + parts[1] + parts[2], whole)


@pytest.mark.usefixtures("ordered_products")
@pytest.mark.parametrize("name", ["dense", "int4", "fp8 tiles"])
def test_a_tokens_bits_are_its_own_in_fixed_tiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = triton_ops(is_batch_invariant=True)
    weights = mixture(LAYOUTS[name], prepared_by=ops)
    x, choice = rows_and_choice(12)
    together = ops.experts(x, choice, weights)
    for rows in (slice(0, 1), slice(5, 12)):
        part = ExpertChoice(choice.expert_ids[rows], choice.weights[rows])
        assert torch.equal(ops.experts(x[rows], part, weights), together[rows])
    # Nor do they depend on how a step is cut to bound its memory.
    monkeypatch.setattr(grouped, "PAIR_NUMBERS", 5 * NUM_CHOSEN * (2 * SIZE + HIDDEN))
    assert torch.equal(ops.experts(x, choice, weights), together)


def act_order(out_features: int, in_features: int, *, seed: int) -> LinearWeight:
    return permuted(random_int4(out_features, in_features, seed=seed), seed)


def of_different_groups(out_features: int, in_features: int, *, seed: int) -> LinearWeight:
    weight = random_int4(out_features, in_features, seed=seed)
    return with_large_groups(weight, 128) if seed % 2 else weight


@pytest.mark.parametrize("make", [act_order, of_different_groups])
def test_experts_that_have_no_common_form_are_computed_one_by_one(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    ops, reference = triton_ops(), ReferenceOps()
    x, choice = rows_and_choice(4)
    expected = reference.experts(x, choice, mixture(make, prepared_by=reference))
    weights = mixture(make, prepared_by=ops)
    assert group_experts(weights) is None
    for _ in range(2):
        assert_near(ops.experts(x, choice, weights), expected)
    assert caplog.text.count("act-order") == 2  # of one line


def test_no_tokens_are_no_work() -> None:
    ops = triton_ops()
    x, choice = rows_and_choice(0)
    assert ops.experts(x, choice, mixture(dense, prepared_by=ops)).shape == (0, HIDDEN)
