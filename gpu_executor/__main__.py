"""The executor process: `python -m pagewire.gpu_executor`, started by the engine core, one a device."""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

import zmq

from pagewire.ipc.channels import PairChannel, bind_core
from pagewire.ipc.errors import ConfigError, ExecutorDied, PagewireError, ProtocolError, StartError
from pagewire.ipc.logs import setup_logging
from pagewire.ipc.process import die_with_parent, read_bootstrap
from pagewire.ipc.steps import ExecutorFailed, Shutdown, ToExecutor

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
    setup_logging(bootstrap.name, bootstrap.log_level)
    die_with_parent(bootstrap)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    channel = bind_core(context, bootstrap.address)
    # OpenMP's threads spin while they wait for each other, and where cores are shared (the frontend and the core run
    # beside this process) they spin on the core that the last one needs: 300 products of 128 rows took 4.1 s (median;
    # worst 10 s) on 2 busy cores, 0.9 s (worst 1.2 s) with sleeping threads. Read when torch loads OpenMP.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Importing torch takes seconds: by now the process watches its parent, and the core's first message is on its way.
    # What an import makes stays: looking for garbage took 0.3 s while it ran, and each later look at all of it as much.
    gc.disable()
    from .host_limits import HostLimits
    from .worker import Worker

    gc.freeze()
    gc.enable()
    worker = Worker(HostLimits(), channel, import_s=time.perf_counter() - started)
    code = serve(channel, worker)
    worker.close()
    channel.socket.close(linger=_LAST_WORDS_MS if code else 0)
    context.term()
    return code


def serve(channel: PairChannel[ToExecutor], worker: Worker) -> int:
    """Answer messages one by one; return the exit code.

    An exception is this process's end: what it leaves in memory is unknown, so the core starts another one.
    """
    try:
        while True:
            message = channel.recv()
            if isinstance(message, Shutdown):
                return 0
            reply = worker.handle(message)
            if reply is not None:
                channel.send(reply)
    except StartError as exc:
        channel.send(ExecutorFailed(executor_epoch=worker.epoch, error=exc.to_info()))
        return exc.exit_code
    # The process's last resort: whatever went wrong, the core learns the cause and the log keeps the traceback.
    except Exception as exc:
        logger.exception("executor failed")
        cause = exc.message if isinstance(exc, PagewireError) else f"{type(exc).__name__}: {exc}"
        channel.send(ExecutorFailed(executor_epoch=worker.epoch, error=ExecutorDied(cause).to_info()))
        return 1


if __name__ == "__main__":
    sys.exit(main())
