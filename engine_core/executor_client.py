"""The core's hold on its executor processes: start them, send a step to every rank, collect, notice a death."""

from __future__ import annotations

from collections.abc import Iterator

import zmq

from pagewire.ipc.channels import PairChannel, connect_executor
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.process import ChildProcess
from pagewire.ipc.requests import Message
from pagewire.ipc.steps import FromExecutor, LoadModel, Shutdown

STOP_TIMEOUT_S = 5.0


class ExecutorGroup:
    """One epoch of executors: fresh processes on fresh sockets, one a rank.

    Every epoch gets its own socket paths, because a stopped process would keep a PAIR socket from its successor.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        runtime_dir: RuntimeDir,
        config: EngineConfig,
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
            core_epoch: of the core itself.
            epoch: counts the groups that this core has started.
            num_blocks: the pool size that an earlier epoch settled, None to measure it.
            module: what to run; tests run a fake.
        """
        self.epoch = epoch
        self._channels: list[PairChannel[FromExecutor]] = []
        self._processes: list[ChildProcess] = []
        world_size = config.parallel.tensor_parallel_size * config.parallel.pipeline_parallel_size
        for rank in range(world_size):
            address = runtime_dir.executor_address(core_epoch, epoch, rank)
            self._channels.append(connect_executor(context, address))
            self._processes.append(
                ChildProcess(
                    module,
                    name=f"executor {rank}",
                    address=address,
                    runtime_dir=runtime_dir.path,
                    log_level=config.log_level,
                    core_epoch=core_epoch,
                )
            )
        self.send(LoadModel(executor_epoch=epoch, config=config, num_blocks=num_blocks))

    def register(self, poller: zmq.Poller) -> None:
        """Add every socket and death notice to a poll."""
        for channel in self._channels:
            poller.register(channel.socket, zmq.POLLIN)
        for process in self._processes:
            poller.register(process.death_fd, zmq.POLLIN)

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

    def find_death(self) -> str | None:
        """Return what ended a process ("executor 0 was killed by SIGKILL"), None while all run."""
        for process in self._processes:
            code = process.exit_code
            if code is not None:
                return f"{process.name} {_describe_exit(code)}"
        return None

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
            process.stop(STOP_TIMEOUT_S)
        for channel in self._channels:
            channel.close()


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    hint = " (out of memory?)" if code == -9 else ""
    return f"was killed by signal {-code}{hint}"
