"""A pipeline stage that launches its steps on a device: what it receives, hands on, and says of its times."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from torch import Tensor

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.batch.input_batch import InputBatch
from pagewire.gpu_executor.batch.kv_cache import KVCache
from pagewire.gpu_executor.batch.step_plan import RowLimits
from pagewire.gpu_executor.devices.cpu import CpuDevice
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.model_runner import ModelRunner
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.parallel.share import Share
from pagewire.gpu_executor.sampling.sampler import Sampler
from pagewire.gpu_executor.weights import load_weights
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, NewRow, ScheduledRow, StepResult
from tests.support.tiny_model import tiny_checkpoint

CPU = torch.device("cpu")
LIMITS = RowLimits(num_blocks=8, block_size=4, vocab_size=512, num_drawable=512)
ROW = NewRow(
    row_id=1,
    child=0,
    token_ids=[5, 6, 7],
    num_prompt_tokens=3,
    num_computed_tokens=0,
    block_table=[1],
    sampling=Sampling(temperature=0.0, num_prompt_logprobs=1),
)
PREFILL = ExecuteStep(executor_epoch=1, step_id=1, new_rows=[ROW], rows=[ScheduledRow(1, 0, 3)])
DECODE = ExecuteStep(executor_epoch=1, step_id=2, rows=[ScheduledRow(1, 3, 1, drawn_token_ids=[9])])


class Clock:
    """Time that passes only where a test says so."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Link:
    """Carries streams to the next stage; whoever receives waits for ten seconds."""

    def __init__(self, clock: Clock, streams: deque[Tensor]) -> None:
        self._clock = clock
        self._received = streams
        self.sent: deque[Tensor] = deque()

    def send(self, stream: Tensor) -> None:
        self.sent.append(stream)

    def receive(self, num_tokens: int) -> Tensor:
        self._clock.now_s += 10.0
        stream = self._received.popleft()
        assert stream.shape[0] == num_tokens
        return stream


def make_stage(stage: Share, link: Link, clock: Clock, *, launches_ahead: bool) -> ModelRunner:
    config, ops = load_model_config(tiny_checkpoint()), ReferenceOps()
    model = build_model(config, ops, dtype=torch.float32, device=CPU, max_model_len=32, stage=stage)
    load_weights(model, config)
    pool = KVCache(model.kv_cache_specs(), num_blocks=8, block_size=4, dtype=torch.float16, device=CPU, ops=ops)
    device = CpuDevice(HostLimits(), clock) if launches_ahead else None
    batch = InputBatch(2, LIMITS, CPU, device, draws=stage.is_last)
    return ModelRunner(model, pool, batch, Sampler(512, ops), link=link, clock=clock)  # type: ignore[arg-type]


@pytest.mark.parametrize("launches_ahead", [True, False])
def test_a_stage_hands_its_stream_on_draws_nothing_and_reads_what_was_drawn(launches_ahead: bool) -> None:
    clock = Clock()
    first, last = Link(clock, deque()), Link(clock, deque())
    last._received = first.sent
    stages = [
        make_stage(Share(0, 2), first, clock, launches_ahead=launches_ahead),
        make_stage(Share(1, 2), last, clock, launches_ahead=False),
    ]
    results = [[runner.execute(step) for runner in stages] for step in (PREFILL, DECODE)]
    assert [result.rows for result, _ in results] == [[], []]
    assert stages[0].batch.history_of(1).token_ids.tolist() == [5, 6, 7, 9]
    assert [len(result.rows[0].token_ids) for _, result in results] == [1, 1]
    assert len(results[0][1].rows[0].prompt_logprobs) == 2
    assert not last.sent


@pytest.mark.parametrize("launches_ahead", [True, False])
def test_waiting_for_the_stage_before_is_no_time_of_the_step(launches_ahead: bool) -> None:
    clock = Clock()
    first = Link(clock, deque())
    make_stage(Share(0, 2), first, clock, launches_ahead=False).execute(PREFILL)
    middle = make_stage(Share(1, 3), Link(clock, first.sent), clock, launches_ahead=launches_ahead)
    result = middle.execute(PREFILL)
    assert clock.now_s == 10.0
    assert isinstance(result, StepResult)
    assert (result.step_s, result.device_s, result.host_gap_s) == (0.0, 0.0, 0.0)
