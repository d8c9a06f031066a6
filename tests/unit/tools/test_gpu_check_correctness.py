"""Comparisons with the reference find what is wrong, and accept what is right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagewire.gpu_executor.kernels.layouts import Fp8Weight, Int4Weight, Int8Weight
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.kernels.triton.launches.attention import MAX_DECODE_TOKENS, MAX_SHORT_CHUNK_TOKENS
from pagewire.gpu_executor.kernels.triton.launches.products import DENSE_MATMUL, INVARIANT_ROWS, QUANTIZED_MATMUL
from pagewire.gpu_executor.kernels.triton.launches.row import LaunchRow, pick
from pagewire.gpu_executor.sampling.device_sampler import DeviceSampler
from pagewire.gpu_executor.sampling.draw import Drawn
from pagewire.ipc.errors import EngineError
from pagewire.ipc.outputs import TokenLogprobs
from tools.gpu_check.comparison import Case, check, relative_error
from tools.gpu_check.correctness import OpCases
from tools.gpu_check.correctness_checkpoints import CHECKPOINTS, checkpoint_cases
from tools.gpu_check.correctness_draws import draw_checks, is_same
from tools.gpu_check.correctness_mixtures import MixtureCases
from tools.gpu_check.correctness_products import ProductCases
from tools.gpu_check.inputs import Inputs
from tools.gpu_check.setting import Setting, Share, make_setting

CPU = torch.device("cpu")


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return make_setting("cpu", tmp_path)


def cases(ops: ReferenceOps, dtype: torch.dtype = torch.float32) -> list[Case]:
    inputs = Inputs(dtype, CPU)
    model = make_setting("cpu", Path()).model
    several = (ProductCases(ops, inputs, is_tiny=True), MixtureCases(ops, inputs, is_tiny=True))
    products = [case for each in several for case in each.all() if "fp8" not in case.op]
    return [*OpCases(ops, inputs, model, is_tiny=True).all(), *products]


def test_the_reference_agrees_with_itself():
    checks = [check(case, torch.float32) for case in cases(ReferenceOps())]
    assert len(checks) > 12
    assert [one for one in checks if not one.passed] == []


OPS = [
    "rms_norm", "add_rms_norm", "rotary", "silu_and_mul", "gelu_tanh_and_mul", "bound_logits", "paged_attention",
    "linear", "experts",
]  # fmt: skip


@pytest.mark.parametrize("op", OPS)
def test_an_error_in_an_op_is_found(op: str):
    class Wrong(ReferenceOps):
        pass

    def wrong(self: ReferenceOps, *arguments: object, **options: object) -> object:
        right = getattr(ReferenceOps, op)(self, *arguments, **options)
        first = right[0] if isinstance(right, tuple) else right
        first.view(-1)[first.numel() // 2] += 0.02 * (first.abs().max() + 1)
        return right

    setattr(Wrong, op, wrong)
    checks = [check(case, torch.float16) for case in cases(Wrong(), torch.float16)]
    own = [one for one in checks if one.op.split()[0] == op]
    assert own
    assert not any(one.passed for one in own)
    composed = ("paged_attention", "experts")  # of other ops
    assert all(one.passed for one in checks if one.op.split()[0] not in (op, *composed))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_factor_that_is_off_by_a_hundredth_is_found(dtype: torch.dtype):
    class Scaled(ReferenceOps):
        def silu_and_mul(self, gate_up):
            return super().silu_and_mul(gate_up) * 1.01

        def paged_attention(self, *arguments, **options):
            return super().paged_attention(*arguments, **options) * 0.99

    found = [check(case, dtype) for case in cases(Scaled(), dtype)]
    assert {one.op for one in found if not one.passed} >= {"silu_and_mul", "paged_attention"}
    wrong = ("silu_and_mul", "paged_attention", "experts")  # experts are composed of others
    assert all(one.passed for one in found if one.op.split()[0] not in wrong)


def test_attention_that_reads_unwritten_slots_is_found():
    class Careless(ReferenceOps):
        def store_kv(self, key, value, kv_cache, slot_mapping):
            super().store_kv(key[1:], value[1:], kv_cache, slot_mapping[1:])

    own = [check(case, torch.float32) for case in cases(Careless()) if case.op == "paged_attention"]
    assert not any(one.passed for one in own)


def test_an_error_in_long_chunks_alone_is_found():
    class WrongWhenLong(ReferenceOps):
        def paged_attention(self, query, kv_cache, metadata, **options):
            right = super().paged_attention(query, kv_cache, metadata, **options)
            return right * (1.1 if metadata.max_query_len > MAX_SHORT_CHUNK_TOKENS else 1.0)

    found = [check(case, torch.float16) for case in cases(WrongWhenLong(), torch.float16)]
    assert {one.op for one in found if not one.passed} == {"paged_attention"}


@pytest.mark.parametrize("is_tiny", [True, False])
def test_every_way_to_attend_is_among_the_comparisons(is_tiny: bool):
    model = make_setting("cpu" if is_tiny else "cuda", Path()).model
    attentions = [
        case
        for case in OpCases(ReferenceOps(), Inputs(torch.float16, CPU), model, is_tiny=is_tiny).all()
        if case.op == "paged_attention"
    ]
    chunks = {chunk for case in attentions for chunk in case.run.args[0]}
    assert any(chunk.num_tokens == 1 for chunk in chunks)
    assert any(MAX_DECODE_TOKENS < chunk.num_tokens <= MAX_SHORT_CHUNK_TOKENS for chunk in chunks)
    assert any(MAX_SHORT_CHUNK_TOKENS < chunk.num_tokens < chunk.length for chunk in chunks)


@pytest.mark.parametrize("rows", [QUANTIZED_MATMUL, DENSE_MATMUL], ids=lambda rows: rows[0].kernel)
def test_every_launch_of_a_product_is_among_the_comparisons(rows: tuple[LaunchRow, ...]):
    products = ProductCases(ReferenceOps(), Inputs(torch.bfloat16, CPU), is_tiny=False)
    if rows is DENSE_MATMUL:
        calls = [(INVARIANT_ROWS, case.run.args[-1]) for case in products.invariant()]
    else:
        calls = [case.run.args[-2:] for case in products.all()]
        assert any(num_rows > 512 for num_rows, _ in calls)  # for which weights are unpacked
    picked = {id(pick(rows, num_rows=num_rows, out_features=out_features)) for num_rows, out_features in calls}
    wanted = {id(row) for row in rows}
    assert picked == wanted


def test_products_with_batch_invariance_are_compared_and_their_rows_alone():
    class DependsOnTheBatch(ReferenceOps):
        def linear(self, x, weight):
            return super().linear(x, weight) * (1 + 1e-3 * (len(x) > 1))

    class Wrong(ReferenceOps):
        def linear(self, x, weight):
            return super().linear(x, weight) * 1.1

    def failed(ops: ReferenceOps) -> set[str]:
        found = ProductCases(ops, Inputs(torch.float32, CPU), is_tiny=True).invariant()
        checks = [check(case, torch.float32) for case in found if "fp8" not in case.op]
        return {"alone" if "alone" in one.case else "right" for one in checks if not one.passed}

    assert failed(ReferenceOps()) <= {"alone"}  # torch's products make no promise
    assert failed(DependsOnTheBatch()) == {"alone", "right"}
    assert "right" in failed(Wrong())


class FloatOps(ReferenceOps):
    """Reference ops that keep weights packed, as the device's do."""

    keeps_quantized_weights = True


def test_quantized_checkpoints_are_loaded_and_run(setting: Setting):
    checks = [check(case, torch.float16) for case in checkpoint_cases(FloatOps(), setting, torch.float16)]
    assert [one.case for one in checks] == [f"{name}, float16" for name in CHECKPOINTS]
    assert [one for one in checks if not one.passed] == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "spoil", [lambda scale: scale.roll(1, dims=0), lambda scale: scale * 1.03], ids=["next-row", "3-percent"]
)
def test_a_checkpoint_whose_weights_are_off_is_found(
    spoil: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, setting: Setting
):
    class SpoilsScales(FloatOps):
        def prepare_weight(self, weight):
            if isinstance(weight, Int4Weight | Int8Weight | Fp8Weight):
                weight = dataclasses.replace(weight, scale=spoil(weight.scale))
            return weight

    found = [check(case, dtype) for case in checkpoint_cases(SpoilsScales(), setting, dtype)]
    assert {one.op for one in found} == {"checkpoint"}
    assert [one.case.partition(",")[0] for one in found if one.passed] == ["plain", "plain gemma2"]


def test_processes_share_all_comparisons(setting: Setting):
    names = [case.name for case in cases(ReferenceOps())]
    shares = [list(dataclasses.replace(setting, share=Share(first, 3)).own(names)) for first in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(names)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert list(setting.own(names)) == names


def test_an_op_that_raises_is_a_finding():
    class Broken(ReferenceOps):
        def silu_and_mul(self, gate_up):
            raise RuntimeError("illegal memory access\nof a kernel")

    found = [check(case, torch.float32) for case in cases(Broken())]
    failed = [one for one in found if not one.passed]
    assert {one.failure for one in failed} == {"RuntimeError: illegal memory access"}
    assert {one.op.split()[0] for one in failed} == {"silu_and_mul", "experts"}  # experts are composed of others


def test_a_difference_counts_by_the_size_of_what_is_expected():
    expected = torch.tensor([0.0, 3.0, -4.0, 0.0])
    assert relative_error(expected.clone(), expected) == 0.0
    off = expected + torch.tensor([0, 0.55, 0, 0])
    assert relative_error(off, expected) == pytest.approx(8 * 0.55 / 2 / 2.5)  # the mean one counts 8 times
    many = torch.ones(10_000)
    assert relative_error(many + torch.tensor([0.1] + [0.0] * 9999), many) == pytest.approx(0.05)
    assert relative_error(torch.full((4,), torch.nan), expected) is None
    assert relative_error(expected[:3], expected) is None


def test_rows_are_the_same_by_tokens_ranks_and_nearly_logprobs():
    right = Drawn([7], [TokenLogprobs(7, -1.5, 2, [3, 7], [-0.5, -1.5])])
    assert is_same(right, right)
    assert is_same(Drawn([7], [TokenLogprobs(7, -1.50001, 2, [3, 7], [-0.5, -1.50001])]), right)
    for wrong in (
        Drawn([8], right.logprobs),
        Drawn([7]),
        Drawn([7], [TokenLogprobs(7, -1.51, 2, [3, 7], [-0.5, -1.5])]),
        Drawn([7], [TokenLogprobs(7, -1.5, 3, [3, 7], [-0.5, -1.5])]),
        Drawn([7], [TokenLogprobs(7, -1.5, 2, [3, 7], [-0.6, -1.5])]),
        Drawn(error=EngineError("not finite").to_info()),
    ):
        assert not is_same(wrong, right)


@pytest.mark.slow
def test_draws_of_interpreted_kernels_are_those_of_the_host(setting: Setting):
    checks = list(draw_checks(select_ops("triton", device=CPU), setting))
    assert len(checks) == 11
    assert [one for one in checks if not one.passed] == []


@pytest.mark.slow
def test_draws_from_other_logits_are_found(setting: Setting, monkeypatch: pytest.MonkeyPatch):
    begin = DeviceSampler.begin

    def begin_with_others(self, model, hidden, draws, logits):
        return begin(self, model, hidden, draws, logits.flip(1).contiguous())

    monkeypatch.setattr(DeviceSampler, "begin", begin_with_others)
    some = dataclasses.replace(setting, share=Share(0, 4))
    checks = list(draw_checks(select_ops("triton", device=CPU), some))
    assert len(checks) == 3
    assert not any(one.passed for one in checks)
