"""`FakeExecutor` as a process that the core starts in place of the real one.

Certain first tokens of a prompt make it misbehave, so that tests can choose the moment.
"""

from __future__ import annotations

import os
import sys
import threading

import zmq

from pagewire.gpu_executor.core_inbox import CoreInbox
from pagewire.ipc.awaited_channel import open_core_channel
from pagewire.ipc.errors import ExecutorDied, MachineError
from pagewire.ipc.process import die_with_parent, read_bootstrap
from pagewire.ipc.steps import (
    ExecuteStep,
    ExecutorBusy,
    ExecutorFailed,
    ExecutorReady,
    LoadModel,
    Shutdown,
    StepResult,
)
from tests.support.fake_executor import FakeExecutor

NUM_BLOCKS = 64
VOCAB_SIZE = 100

EXITS = 91  # a prompt that begins with it ends the process
FAILS = 92  # ... makes it report a failed step
CONFUSED = 93  # ... makes it answer another step than the one asked for
EXITS_ONCE = 94  # ... ends the process, if it is the first one
HANGS_ONCE = 95  # ... makes it never answer again, if it is the first one
CAPTURES = 96  # ... makes it do other work for CAPTURE_S after its answer, which it announces
TALKS_OUT_OF_TURN_ONCE = 97  # ... makes the ranks that have nothing to answer answer too, if they are the first ones

CAPTURE_S = 1.2

NO_MEMORY = 13  # --seed 13: it can't start
NO_MEMORY_LATER = 14  # ... the first one can start, those after it can't
HANGS_LATER = 15  # ... the second one hangs while it loads


class FakeRank:
    """One of the executors: runs every step, and answers it if it is the output rank."""

    def __init__(self, inbox: CoreInbox, load: LoadModel) -> None:
        mesh = load.config.parallel.mesh
        self._channel = inbox
        self._epoch = load.executor_epoch
        self._is_output_rank = load.placement.rank == mesh.output_rank
        self._executor = FakeExecutor(
            num_blocks=NUM_BLOCKS,
            block_size=load.config.cache.block_size,
            vocab_size=VOCAB_SIZE,
            num_stages=mesh.pp,
        )

    def run(self, step: ExecuteStep) -> None:
        """Run a step, or do what its prompts order; those orders are the output rank's."""
        orders = {row.token_ids[0] for row in step.new_rows}
        is_masked = any(row.is_masked for row in step.rows)
        masks = self._channel.wait_for_masks(step.step_id) if is_masked else {}
        is_first = self._epoch == 1
        if not self._is_output_rank:
            result = self._executor.execute(step, masks)
            if TALKS_OUT_OF_TURN_ONCE in orders and is_first:
                self._channel.send(result)
            return
        if EXITS in orders or (EXITS_ONCE in orders and is_first):
            os._exit(3)
        if HANGS_ONCE in orders and is_first:
            threading.Event().wait()
        if FAILS in orders:
            error = ExecutorDied("the step went wrong").to_info()
            self._channel.send(ExecutorFailed(executor_epoch=self._epoch, error=error))
        elif CONFUSED in orders:
            self._channel.send(StepResult(executor_epoch=self._epoch, step_id=step.step_id + 7))
        else:
            self._channel.send(self._executor.execute(step, masks))
        if CAPTURES in orders:
            self._channel.send(ExecutorBusy(executor_epoch=self._epoch, reason="capturing a graph", limit_s=10.0))
            threading.Event().wait(CAPTURE_S)


def main() -> int:
    bootstrap = read_bootstrap()
    die_with_parent(bootstrap)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    channel = open_core_channel(context, bootstrap.address, bootstrap.client_keys)
    inbox = CoreInbox(channel, 0)
    rank: FakeRank | None = None
    while True:
        match inbox.try_recv():
            case None:
                inbox.wait()
            case LoadModel() as load:
                epoch, seed = load.executor_epoch, load.config.model.seed
                if seed == HANGS_LATER and epoch == 2:
                    channel.send(ExecutorBusy(executor_epoch=epoch, reason="loading", limit_s=0.1))
                    threading.Event().wait()
                if seed == NO_MEMORY or (seed == NO_MEMORY_LATER and epoch > 1):
                    error = MachineError("There is no memory left at all.").to_info()
                    channel.send(ExecutorFailed(executor_epoch=epoch, error=error))
                    channel.socket.close(linger=1000)
                    context.term()
                    return 1
                inbox = CoreInbox(channel, epoch)
                rank = FakeRank(inbox, load)
                channel.send(
                    ExecutorReady(
                        executor_epoch=epoch,
                        num_blocks=NUM_BLOCKS,
                        device="cpu",
                        dtype="float32",
                        kv_cache_dtype="float32",
                    )
                )
            case ExecuteStep() as step:
                assert rank is not None
                rank.run(step)
            case Shutdown():
                channel.close()
                context.term()
                return 0


if __name__ == "__main__":
    sys.exit(main())
