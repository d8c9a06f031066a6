"""The executor process: `python -m pagewire.gpu_executor`, started by the engine core, one a device."""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

import zmq

from pagewire.ipc.awaited_channel import open_core_channel
from pagewire.ipc.channels import PairChannel
from pagewire.ipc.errors import ConfigError, ExecutorDied, PagewireError, ProtocolError, RankLost, StartError
from pagewire.ipc.logs import setup_logging
from pagewire.ipc.process import die_with_parent, read_bootstrap
from pagewire.ipc.steps import ExecutorFailed, FromExecutor, LoadModel, Shutdown, ToExecutor

from .completion import end_process
from .core_inbox import CoreInbox, Stopped
from .pulse import Pulse, longest_silence_s
from .step_pipeline import StepPipeline

if TYPE_CHECKING:
    from .worker import Worker

# The last message of a failing executor names the cause: it may wait so long for the core to read it.
_LAST_WORDS_MS = 2000

logger = logging.getLogger("pagewire.gpu_executor")  # __name__ is __main__ here


def main() -> int:
    """Serve one engine core until it says `Shutdown`; return the exit code."""
    started = time.perf_counter()
    try:
        bootstrap = read_bootstrap()
    except ProtocolError as exc:
        sys.stderr.write(f"{exc.message}\n")
        return ConfigError.exit_code
    setup_logging(bootstrap.name, bootstrap.log_level, bootstrap.log_format)
    die_with_parent(bootstrap)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    channel = open_core_channel(context, bootstrap.address, bootstrap.client_keys)
    message = channel.recv()
    code = 0
    if isinstance(message, LoadModel):
        is_first = bootstrap.core_epoch == 1 and message.executor_epoch == 1
        silence_s = longest_silence_s(is_first=is_first, device=message.config.model.device)
        code = serve(channel, message, started, silence_s)
    channel.socket.close(linger=_LAST_WORDS_MS if code else 0)
    context.term()
    return code


def serve(channel: PairChannel[ToExecutor], load: LoadModel, started: float, silence_s: float) -> int:
    """Load the model, then answer messages one by one; return the exit code.

    An exception is this process's end: what it leaves in memory is unknown, so the core starts another one.

    Args:
        channel: to the core.
        load: its first message.
        started: when the process started, by `time.perf_counter`.
        silence_s: how long it may be silent while it loads before it counts as hung.
    """
    epoch = load.executor_epoch
    try:
        with Pulse(channel, epoch=epoch, reason="importing", limit_s=silence_s):
            worker = _import_worker(channel, started)
        with Pulse(channel, epoch=epoch, reason="loading the model", limit_s=silence_s):
            reply = worker.handle(load)
        _answer(CoreInbox(channel, epoch), worker, reply)
        return 0
    except StartError as exc:
        channel.send(ExecutorFailed(executor_epoch=epoch, error=exc.to_info()))
        return exc.exit_code
    # The process's last resort: whatever went wrong, the core learns the cause and the log keeps the traceback.
    except Exception as exc:
        if isinstance(exc, RankLost):
            logger.error("%s", exc.message)
        else:
            logger.exception("executor failed")
        channel.send(ExecutorFailed(executor_epoch=epoch, error=_to_death(exc).to_info()))
        return 1


def _to_death(exc: Exception) -> ExecutorDied:
    """Return the error that the core is told; of a rank that was lost, it looks for what happened to that one."""
    if isinstance(exc, RankLost):
        return exc
    return ExecutorDied(exc.message if isinstance(exc, PagewireError) else f"{type(exc).__name__}: {exc}")


def _import_worker(channel: PairChannel[ToExecutor], started: float) -> Worker:
    """Import torch, which takes seconds: by now the process watches its parent, and the core knows that it runs."""
    # OpenMP's threads spin while they wait for each other, and where cores are shared (the frontend and the core run
    # beside this process) they spin on the core that the last one needs: 300 products of 128 rows took 4.1 s (median;
    # worst 10 s) on 2 busy cores, 0.9 s (worst 1.2 s) with sleeping threads. Read when torch loads OpenMP.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # What an import makes stays: looking for garbage took 0.3 s while it ran, and each later look at all of it as much.
    gc.disable()
    from .host_limits import HostLimits
    from .worker import Worker

    gc.freeze()
    gc.enable()
    return Worker(HostLimits(), channel, import_s=time.perf_counter() - started)


def _answer(inbox: CoreInbox, worker: Worker, reply: FromExecutor | None) -> None:
    """Send a reply, and answer what comes until the core says `Shutdown`."""
    try:
        if worker.launches_ahead:
            if reply is not None:
                inbox.send(reply)
            pipeline = StepPipeline(inbox, worker)
            worker.take_masks_from(pipeline)
            pipeline.run()
            return
        worker.take_masks_from(inbox)
        while True:
            if reply is not None:
                inbox.send(reply)
            for answer in worker.take_background_answers():
                inbox.send(answer)
            message = inbox.try_recv()
            if isinstance(message, Shutdown):
                return
            if message is None:
                inbox.wait(fd=worker.background_fd)
            reply = None if message is None else worker.handle(message)
    except Stopped:
        return
    finally:
        worker.close()


if __name__ == "__main__":
    end_process(main())
