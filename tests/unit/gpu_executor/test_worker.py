"""The worker answers each message; the runner behind it is real."""

from __future__ import annotations

import json
import shutil

import pytest

from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.worker import Worker
from pagewire.ipc.config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig
from pagewire.ipc.errors import ConfigError, MachineError
from pagewire.ipc.requests import CallUtility
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, ExecutorReady, LoadModel, NewRow, ScheduledRow, StepResult
from tests.support.tiny_model import tiny_checkpoint


def load_message(num_blocks=None, model_path=None, **cache):
    model = ModelOptions(model_path=str(model_path or tiny_checkpoint()))
    scheduler = SchedulerConfig(max_num_seqs=2)
    config = EngineConfig(model=model, cache=CacheConfig(**cache), scheduler=scheduler)
    return LoadModel(executor_epoch=3, config=config, num_blocks=num_blocks)


def one_token_step(epoch=3):
    row = NewRow(
        row_id=1,
        child=0,
        token_ids=[5, 6],
        num_prompt_tokens=2,
        num_computed_tokens=0,
        block_table=[0],
        sampling=Sampling(temperature=0.0),
    )
    return ExecuteStep(executor_epoch=epoch, step_id=1, new_rows=[row], rows=[ScheduledRow(1, 0, 2)])


@pytest.fixture
def worker():
    return Worker(HostLimits(), import_s=1.25)


def test_load_is_answered_by_what_was_learned(worker):
    ready = worker.handle(load_message())
    assert isinstance(ready, ExecutorReady)
    # Two sequences of 512 tokens in blocks of 16, and one block for a copy on write.
    assert ready.num_blocks == 65
    assert (ready.executor_epoch, ready.device, ready.dtype, ready.kv_cache_dtype) == (3, "cpu", "float32", "float16")
    phases = ["imports", "model configuration", "weights", "memory profile", "KV cache", "warm-up"]
    assert [phase for phase, _ in ready.startup] == phases
    assert ready.startup[0][1] == 1.25
    assert "65 blocks" in ready.memory


@pytest.mark.parametrize(("asked", "used"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("auto", "float16")])
def test_kv_cache_dtype_is_what_was_asked(worker, asked, used):
    ready = worker.handle(load_message(kv_cache_dtype=asked))
    assert isinstance(ready, ExecutorReady)
    assert ready.kv_cache_dtype == used


def test_later_executor_takes_the_number_of_blocks_it_is_given(worker):
    ready = worker.handle(load_message(num_blocks=7, gpu_memory_utilization=1e-9 + 0.5))
    assert isinstance(ready, ExecutorReady)
    assert ready.num_blocks == 7


def test_step_is_answered_with_its_ids(worker):
    worker.handle(load_message())
    result = worker.handle(one_token_step())
    assert isinstance(result, StepResult)
    assert (result.executor_epoch, result.step_id) == (3, 1)
    assert result.step_s > 0
    assert len(result.rows[0].token_ids) == 1


def test_warm_up_leaves_no_row(worker):
    worker.handle(load_message())
    assert worker.handle(CallUtility(call_id=4, method="batch_rows")).result == []


def test_rows_and_their_block_tables_are_readable(worker):
    worker.handle(load_message())
    worker.handle(one_token_step())
    assert worker.handle(CallUtility(call_id=4, method="batch_rows")).result == [[1, 3, [0]]]


def test_unknown_utility_is_answered_by_an_error(worker):
    result = worker.handle(CallUtility(call_id=9, method="make_tea"))
    assert (result.call_id, result.error.kind) == (9, "NotFound")


def test_step_of_another_epoch_is_dropped(worker):
    worker.handle(load_message())
    assert worker.handle(one_token_step(epoch=2)) is None


def test_step_before_the_load_is_dropped(worker):
    assert worker.handle(one_token_step()) is None


def test_missing_checkpoint_is_a_configuration_error(worker, tmp_path):
    with pytest.raises(ConfigError, match="nothing-here"):
        worker.handle(load_message(model_path=tmp_path / "nothing-here"))


def test_too_little_memory_is_a_machine_error(worker):
    with pytest.raises(MachineError):
        worker.handle(load_message(gpu_memory_utilization=1e-6))


def test_model_that_can_not_be_allocated_is_a_machine_error(worker, tmp_path):
    directory = shutil.copytree(tiny_checkpoint(), tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    num_positions = 2**47  # more bytes of rotary table than a process has addresses
    (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": num_positions}))
    with pytest.raises(MachineError, match=f"table of {num_positions} positions .* lower --max-model-len"):
        worker.handle(load_message(model_path=directory))
