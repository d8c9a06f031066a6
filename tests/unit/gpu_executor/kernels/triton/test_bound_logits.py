"""Logits are scaled and bounded as the reference does it, and what a model's sampler sees is that, once."""

from __future__ import annotations

import functools
import math

import msgspec
import numpy as np
import pytest
import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.devices.cpu import CpuDevice
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.reference.logits import bound_logits as reference
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.models.base import Model
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.sampling.device_sampler import DeviceSampler
from pagewire.gpu_executor.sampling.draw import Draw, RowSampling
from pagewire.gpu_executor.sampling.row_edits import TokenHistory
from pagewire.gpu_executor.sampling.sampler import Sampler
from pagewire.gpu_executor.weights import load_weights
from pagewire.ipc.errors import EngineError
from pagewire.ipc.sampling_params import Sampling
from tests.support.elementwise import TOLERANCES, normal
from tests.support.planted import PRECISION_ERRORS, assert_notices
from tests.support.tiny_model import tiny_checkpoint

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.bound_logits import bound_logits
from pagewire.gpu_executor.kernels.triton.triton_ops import TritonOps

pytestmark = pytest.mark.usefixtures("poisoned_memory")

CPU = torch.device("cpu")
each_bound = pytest.mark.parametrize(("scale", "soft_cap"), [(0.0625, None), (1.0, 30.0), (0.5, 4.0)])


@each_bound
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("vocab_size", [1, 512, 1029])
def test_bounds_give_the_reference(vocab_size: int, dtype: torch.dtype, scale: float, soft_cap: float | None) -> None:
    logits = (20 * normal(3, vocab_size)).to(dtype)
    expected = reference(logits, scale, soft_cap)
    out = torch.full((4, vocab_size), 7.0)
    for bounded in (bound_logits(logits, scale, soft_cap), bound_logits(logits, scale, soft_cap, out[:3])):
        assert bounded.dtype == torch.float32
        torch.testing.assert_close(bounded, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(out[:3], bounded)
    assert (out[3] == 7).all()


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # exp of a large number, by numpy
def test_bounds_meet_their_limits() -> None:
    logits = torch.tensor([[0.0, 1e-3, 1e6, -1e6, 3e38, math.inf, -math.inf, math.nan]])
    for bound in (bound_logits, reference):
        out = bound(logits, 1.0, 30.0)[0]
        # What is infinite stays so: the sampler reports it.
        assert out[:7].tolist() == pytest.approx([0.0, 1e-3, 30.0, -30.0, 30.0, math.inf, -math.inf], abs=5e-6)
        assert out[7].isnan()
        for soft_cap in (None, 30.0):
            scaled = bound(torch.tensor([[1.0, 3e38, -3e38]]), 4.0, soft_cap)[0]
            assert scaled[0].isfinite()
            assert scaled[1:].tolist() == [math.inf, -math.inf]


def test_no_rows_are_no_work() -> None:
    assert bound_logits(torch.empty(0, 64), 0.5, None).shape == (0, 64)


def test_tolerance_notices_planted_errors() -> None:
    logits = normal(4, 200)
    expected = reference(logits, 0.5, 4.0)
    compare = functools.partial(torch.testing.assert_close, expected, rtol=1e-5, atol=1e-6)
    assert_notices(compare, bound_logits(logits, 0.5, 4.0))
    assert_notices(compare, bound_logits(logits, 0.5, 4.0), planted=PRECISION_ERRORS)


def bounded_model(ops: Ops, scale: float, soft_cap: float | None) -> Model:
    config = msgspec.structs.replace(
        load_model_config(tiny_checkpoint(num_layers=1)), logit_scale=scale, logit_soft_cap=soft_cap
    )
    model = build_model(config, ops, dtype=torch.float32, device=CPU, max_model_len=64)
    load_weights(model, config)
    return model


def draws() -> list[Draw]:
    """One that is greedy, and two whose tokens and logprobs depend on the size of logits."""
    samplings = [
        Sampling(temperature=0.0),
        Sampling(temperature=0.0, num_logprobs=3),
        Sampling(temperature=1.0, seed=3, num_logprobs=2, top_p=0.8),
    ]
    history = TokenHistory(np.array([1, 2, 3], dtype=np.int32), 2)
    return [Draw(RowSampling.prepare(sampling, 0, 512), history, 1) for sampling in samplings]


@each_bound
@pytest.mark.parametrize("is_captured", [False, True])
def test_draws_on_the_device_see_logits_that_are_bounded_once(
    scale: float, soft_cap: float | None, is_captured: bool
) -> None:
    ops = TritonOps(CPU, is_batch_invariant=False, attention_backend="triton")
    model, expected_model = bounded_model(ops, scale, soft_cap), bounded_model(ReferenceOps(), scale, soft_cap)
    hidden = 20 * normal(3, 64)
    # What a graph holds writes to buffers that are its own, and the sampler is given those.
    logits = model.compute_logits(hidden, out=torch.full((4, 512), math.nan)[:3]) if is_captured else None
    sampler = DeviceSampler(512, ops, CpuDevice(HostLimits()))
    drawn = sampler.begin(model, hidden, draws(), logits).collect()
    expected = Sampler(512, ReferenceOps()).begin(expected_model, hidden, draws()).collect()
    assert [one.token_ids for one in drawn] == [one.token_ids for one in expected]
    for one, other in zip(drawn, expected, strict=True):
        for report, expected_report in zip(one.logprobs, other.logprobs, strict=True):
            assert report.top_token_ids == expected_report.top_token_ids
            assert report.logprob == pytest.approx(expected_report.logprob, abs=1e-4)
    reported = sampler.prompt_logprobs(model.compute_logits(hidden), [5, 6, 7], 1)
    expected_reported = Sampler(512, ReferenceOps()).prompt_logprobs(
        expected_model.compute_logits(hidden), [5, 6, 7], 1
    )
    for report, expected_report in zip(reported, expected_reported, strict=True):
        assert report.logprob == pytest.approx(expected_report.logprob, abs=1e-4)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # what is tested, by numpy
@pytest.mark.parametrize("soft_cap", [None, 30.0])
def test_rows_whose_logits_overflow_by_their_scale_fail_alone(soft_cap: float | None) -> None:
    ops = TritonOps(CPU, is_batch_invariant=False, attention_backend="triton")
    hidden = normal(3, 64)
    hidden[1] *= 1e37
    on_device = DeviceSampler(512, ops, CpuDevice(HostLimits())), bounded_model(ops, 1e4, soft_cap)
    on_host = Sampler(512, ReferenceOps()), bounded_model(ReferenceOps(), 1e4, soft_cap)
    for sampler, model in (on_device, on_host):
        largest = (model.compute_logits(hidden)).amax(dim=1)
        assert largest.isposinf().tolist() == [False, True, False]
        for kind in draws():
            drawn = sampler.begin(model, hidden, [kind] * 3).collect()
            assert [one.error is not None for one in drawn] == [False, True, False]
            assert drawn[1].error is not None
            assert "not finite" in drawn[1].error.message
        with pytest.raises(EngineError, match="not finite"):
            sampler.prompt_logprobs(model.compute_logits(hidden), [5, 6, 7], 1)
