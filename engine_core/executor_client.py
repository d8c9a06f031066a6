"""The core's hold on its executor processes: start them, send a step to every rank, collect, notice a death."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import zmq

from pagewire.ipc.channels import PairChannel, connect_executor
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.endpoints import RuntimeDir, ipc_path
from pagewire.ipc.process import ChildProcess
from pagewire.ipc.requests import Message
from pagewire.ipc.steps import FromExecutor, LoadModel, Shutdown

STOP_TIMEOUT_S = 1.0  # an executor has nothing to save: whoever does not end by then hangs or was stopped


class ProcessDeath(NamedTuple):
    """How a process ended ("executor 0 was killed by signal 9"), and whether that was done to it."""

    text: str
    was_killed: bool


class ExecutorGroup:
    """One epoch of executors: fresh processes on fresh sockets, one a rank.

    Every epoch gets its own socket paths, because a stopped process would keep a PAIR socket from its successor.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        runtime_dir: RuntimeDir,
        config: EngineConfig,
        poller: zmq.Poller,
        *,
        core_epoch: int,
        epoch: int,
        num_blocks: int | None = None,
        module: str = "pagewire.gpu_executor",
    ) -> None:
        """Start the processes and have them load the model.

        Args:
            context: the core's ZeroMQ context.
            runtime_dir: where the sockets go.
            config: sent to every rank by `LoadModel`.
            poller: watches the sockets and the death notices as long as there are any.
            core_epoch: of the core itself.
            epoch: counts the groups that this core has started.
            num_blocks: the pool size that an earlier epoch settled, None to measure it.
            module: what to run; tests run a fake.
        """
        self.epoch = epoch
        self._poller = poller
        self._socket_paths: list[Path] = []
        self._channels: list[PairChannel[FromExecutor]] = []
        self._processes: list[ChildProcess] = []
        world_size = config.parallel.tensor_parallel_size * config.parallel.pipeline_parallel_size
        for rank in range(world_size):
            address = runtime_dir.executor_address(core_epoch, epoch, rank)
            path = ipc_path(address)
            if path is not None:
                self._socket_paths.append(path)
            channel = connect_executor(context, address)
            self._channels.append(channel)
            poller.register(channel.socket, zmq.POLLIN)
            process = ChildProcess(
                module,
                name=f"executor {rank}",
                address=address,
                runtime_dir=runtime_dir.path,
                log_level=config.log_level,
                core_epoch=core_epoch,
            )
            self._processes.append(process)
            poller.register(process.death_fd, zmq.POLLIN)
        self.send(LoadModel(executor_epoch=epoch, config=config, num_blocks=num_blocks))

    def send(self, message: Message) -> None:
        """Send one message to every rank."""
        for channel in self._channels:
            channel.send(message)

    def drain(self) -> Iterator[FromExecutor]:
        """Yield what the executors have sent, as far as it belongs to this epoch."""
        for channel in self._channels:
            while (message := channel.try_recv()) is not None:
                if getattr(message, "executor_epoch", self.epoch) == self.epoch:
                    yield message

    def wait_for_message(self, timeout_s: float) -> None:
        """Return when an executor has sent something, at the latest after `timeout_s`."""
        poller = zmq.Poller()
        for channel in self._channels:
            poller.register(channel.socket, zmq.POLLIN)
        poller.poll(int(timeout_s * 1000))

    def find_death(self) -> ProcessDeath | None:
        """Return what ended the first process that is dead, None while all run."""
        for process in self._processes:
            code = process.exit_code
            if code is not None:
                return ProcessDeath(f"{process.name} {_describe_exit(code)}", was_killed=code < 0)
        return None

    def begin_kill(self) -> None:
        """Kill every rank, without waiting for their ends, and close the sockets."""
        for process in self._processes:
            process.begin_kill()
        for channel in self._channels:
            self._poller.unregister(channel.socket)
            channel.close()
        self._channels.clear()
        for path in self._socket_paths:  # a killed process leaves its own behind
            path.unlink(missing_ok=True)

    def reap(self) -> bool:
        """Return whether all ranks are dead; after `begin_kill` only."""
        for process in [process for process in self._processes if process.exit_code is not None]:
            self._forget(process)
            process.close()
        return not self._processes

    def stop(self, *, grace_s: float = 0.0) -> None:
        """Order every rank to stop, kill those that do not, reap all, close the sockets.

        Args:
            grace_s: how long a rank may take to end by itself after `Shutdown`, before it is made to. Without grace it
                ends at once, in whatever it does.
        """
        self.send(Shutdown())
        for process in self._processes:
            if grace_s:
                process.wait(grace_s)
            process.ask_to_stop()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self._processes:
            process.wait(max(deadline - time.monotonic(), 0.0))
        self.kill()

    def kill(self) -> None:
        """Kill every rank that runs, reap all, close the sockets."""
        self.begin_kill()
        for process in list(self._processes):
            self._forget(process)
            process.kill()

    def _forget(self, process: ChildProcess) -> None:
        self._poller.unregister(process.death_fd)
        self._processes.remove(process)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    hint = " (out of memory?)" if code == -9 else ""
    return f"was killed by signal {-code}{hint}"
