"""The executor as its core sees it: one process on one socket."""

from __future__ import annotations

import subprocess
import sys

import pytest
import zmq

from pagewire.ipc.channels import connect_executor
from pagewire.ipc.config import CacheConfig, EngineConfig, ModelOptions
from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.process import ChildProcess
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import (
    ExecuteStep,
    ExecutorBusy,
    ExecutorFailed,
    ExecutorReady,
    LoadModel,
    NewRow,
    ScheduledRow,
    Shutdown,
    StepResult,
)
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow  # each test starts a process that imports torch

DEADLINE_S = 60.0


class Executor:
    def __init__(self):
        self.runtime_dir = RuntimeDir()
        self.context = zmq.Context()
        address = self.runtime_dir.executor_address(1, 1, 0)
        self.channel = connect_executor(self.context, address)
        self.channel.socket.setsockopt(zmq.RCVTIMEO, int(DEADLINE_S * 1000))
        self.process = ChildProcess(
            "pagewire.gpu_executor",
            name="executor 0",
            address=address,
            runtime_dir=self.runtime_dir.path,
            log_level="error",
        )

    def load(self, model_path, **cache):
        model = ModelOptions(model_path=str(model_path))
        self.channel.send(LoadModel(executor_epoch=1, config=EngineConfig(model=model, cache=CacheConfig(**cache))))
        self.pulses = []
        while isinstance(message := self.channel.recv(), ExecutorBusy):
            self.pulses.append(message)
        return message

    def close(self):
        if self.process.exit_code is None:
            self.process.kill()
        else:
            self.process.close()
        self.channel.close()
        self.context.term()
        self.runtime_dir.remove()


@pytest.fixture
def executor():
    executor = Executor()
    yield executor
    executor.close()


def step(block_copies=()):
    row = NewRow(
        row_id=1,
        child=0,
        token_ids=[5, 6],
        num_prompt_tokens=2,
        num_computed_tokens=0,
        block_table=[0],
        sampling=Sampling(temperature=0.0),
    )
    return ExecuteStep(
        executor_epoch=1, step_id=1, block_copies=list(block_copies), new_rows=[row], rows=[ScheduledRow(1, 0, 2)]
    )


def test_executor_loads_steps_and_ends_in_order(executor):
    assert isinstance(executor.load(tiny_checkpoint()), ExecutorReady)
    assert {pulse.reason for pulse in executor.pulses} == {"importing", "loading the model"}
    executor.channel.send(step())
    result = executor.channel.recv()
    assert isinstance(result, StepResult)
    assert len(result.rows[0].token_ids) == 1
    executor.channel.send(Shutdown())
    assert executor.process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize(
    ("model_path", "cache", "kind", "exit_code"),
    [("/nothing/here", {}, "ConfigError", 2), (None, {"gpu_memory_utilization": 1e-6}, "MachineError", 1)],
)
def test_failed_start_names_the_cause_and_the_exit_code_its_kind(executor, model_path, cache, kind, exit_code):
    failed = executor.load(model_path or tiny_checkpoint(), **cache)
    assert isinstance(failed, ExecutorFailed)
    assert failed.error.kind == kind
    assert executor.process.wait(DEADLINE_S) == exit_code


def test_exception_in_a_step_is_a_death_with_a_cause(executor):
    executor.load(tiny_checkpoint())
    executor.channel.send(step(block_copies=[(10**6, 0)]))
    failed = executor.channel.recv()
    assert isinstance(failed, ExecutorFailed)
    assert failed.error.kind == "ExecutorDied"
    assert "block copies" in failed.error.message
    assert executor.process.wait(DEADLINE_S) == 1


def test_executor_ends_when_its_core_lets_go(executor):
    assert isinstance(executor.load(tiny_checkpoint()), ExecutorReady)
    executor.process.ask_to_stop()
    assert executor.process.wait(DEADLINE_S) == 0


def test_executor_started_by_hand_says_how_to_start_it():
    done = subprocess.run(
        [sys.executable, "-m", "pagewire.gpu_executor"], input=b"", capture_output=True, timeout=DEADLINE_S
    )
    assert done.returncode == 2
    assert b"pagewire serve" in done.stderr
