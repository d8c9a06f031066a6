"""Comparisons with the reference find what is wrong, and accept what is right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.sampling.device_sampler import DeviceSampler
from pagewire.gpu_executor.sampling.draw import Drawn
from pagewire.ipc.errors import EngineError
from pagewire.ipc.outputs import TokenLogprobs
from tools.gpu_check.correctness import Case, OpCases, check, relative_error
from tools.gpu_check.correctness_draws import draw_checks, is_same
from tools.gpu_check.setting import Setting, make_setting

CPU = torch.device("cpu")


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return make_setting("cpu", tmp_path)


def cases(ops: ReferenceOps, dtype: torch.dtype = torch.float32) -> list[Case]:
    return [case for case in OpCases(ops, CPU, dtype, is_tiny=True).all() if "fp8" not in case.op]


def test_the_reference_agrees_with_itself():
    checks = [check(case, torch.float32) for case in cases(ReferenceOps())]
    assert len(checks) > 12
    assert [one for one in checks if not one.passed] == []


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", "rotary", "silu_and_mul", "paged_attention", "linear"])
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
    assert all(one.passed for one in checks if one.op.split()[0] not in (op, "paged_attention"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_factor_that_is_off_by_a_hundredth_is_found(dtype: torch.dtype):
    class Scaled(ReferenceOps):
        def silu_and_mul(self, gate_up):
            return super().silu_and_mul(gate_up) * 1.01

        def paged_attention(self, *arguments, **options):
            return super().paged_attention(*arguments, **options) * 0.99

    found = [check(case, dtype) for case in cases(Scaled(), dtype)]
    assert {one.op for one in found if not one.passed} >= {"silu_and_mul", "paged_attention"}
    assert all(one.passed for one in found if one.op not in ("silu_and_mul", "paged_attention"))


def test_attention_that_reads_unwritten_slots_is_found():
    class Careless(ReferenceOps):
        def store_kv(self, key, value, kv_cache, slot_mapping):
            super().store_kv(key[1:], value[1:], kv_cache, slot_mapping[1:])

    own = [check(case, torch.float32) for case in cases(Careless()) if case.op == "paged_attention"]
    assert not any(one.passed for one in own)


def test_an_op_that_raises_is_a_finding():
    class Broken(ReferenceOps):
        def silu_and_mul(self, gate_up):
            raise RuntimeError("illegal memory access\nof a kernel")

    found = [check(case, torch.float32) for case in cases(Broken())]
    assert [one.failure for one in found if not one.passed] == ["RuntimeError: illegal memory access"]


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
    assert len(checks) == 5
    assert [one for one in checks if not one.passed] == []


@pytest.mark.slow
def test_draws_from_other_logits_are_found(setting: Setting, monkeypatch: pytest.MonkeyPatch):
    begin = DeviceSampler.begin

    def begin_with_others(self, model, hidden, draws, logits):
        return begin(self, model, hidden, draws, logits.flip(1).contiguous())

    monkeypatch.setattr(DeviceSampler, "begin", begin_with_others)
    assert not any(one.passed for one in draw_checks(select_ops("triton", device=CPU), setting))
