"""The real executor, ended by certain prompts: `faulty_core` starts it in place of the real one."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from pagewire.gpu_executor import __main__ as executor
from pagewire.ipc.channels import PairChannel
from pagewire.ipc.errors import MachineError
from pagewire.ipc.requests import CallUtility
from pagewire.ipc.steps import ExecuteStep, FromExecutor, LoadModel, ToExecutor

if TYPE_CHECKING:
    from pagewire.gpu_executor.step_in_flight import StepInFlight

# A prompt that begins with one of these ...
KILLER = 401  # ... ends the process, as a failing device or the system's memory killer does
RAISER = 402  # ... makes the step raise
HANGER = 403  # ... makes the step last for ever

DIES_FROM_EPOCH = "TEST_EXECUTOR_DIES_FROM_EPOCH"  # an environment variable: executors from this one on can't start

import_worker = executor._import_worker


class PoisonedWorker:
    """Looks at each message before the real worker gets it; is that worker in all else."""

    def __init__(self, channel: PairChannel[ToExecutor], started: float) -> None:
        self._worker = import_worker(channel, started)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def handle(self, message: LoadModel | ExecuteStep | CallUtility) -> FromExecutor | None:
        match message:
            case LoadModel(executor_epoch=epoch) if epoch >= int(os.environ.get(DIES_FROM_EPOCH, "1000")):
                raise MachineError("a planted fault: the device is gone")
            case ExecuteStep():
                fall_for_any(message)
        return self._worker.handle(message)

    def launch(self, step: ExecuteStep) -> StepInFlight | None:
        fall_for_any(step)
        return self._worker.launch(step)


def fall_for_any(step: ExecuteStep) -> None:
    for row in step.new_rows:
        fall_for(row.token_ids[0])


def fall_for(first_token: int) -> None:
    if first_token == KILLER:
        os.kill(os.getpid(), signal.SIGKILL)
    if first_token == RAISER:
        raise RuntimeError("a planted fault")
    while first_token == HANGER:
        time.sleep(1)


if __name__ == "__main__":
    executor._import_worker = PoisonedWorker
    sys.exit(executor.main())
