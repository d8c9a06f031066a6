"""Where executors run: who starts a rank's process, how the core speaks to it, and what tells of its end."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

import zmq

from pagewire.ipc.channels import PairChannel, connect_executor
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.endpoints import RuntimeDir, ipc_path
from pagewire.ipc.errors import ErrorInfo
from pagewire.ipc.process import ChildProcess
from pagewire.ipc.steps import FromExecutor, RankPlacement


class RankProcess(Protocol):
    """A rank's process as its group sees it; `ipc.process.ChildProcess` is one, for a process of this host."""

    name: str
    """For logs and error texts: "executor 1"."""

    @property
    def death_fd(self) -> int:
        """A descriptor that becomes readable when the process is dead."""

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""

    def describe_end(self) -> str:
        """Return how it ended, for a text: "was killed by signal 9"; it must be dead."""

    def ask_to_stop(self) -> None:
        """Order it to stop; returns at once."""

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end; return the exit code, None if it still runs after `timeout_s`."""

    def begin_kill(self) -> None:
        """Kill it without waiting for its end; one that has ended is left alone."""

    def kill(self) -> None:
        """Kill it and wait for its end; releases what `close` releases."""

    def close(self) -> None:
        """Release what the core holds of it; it must be dead."""


class PlacedRank(NamedTuple):
    """A rank that was started.

    Attributes:
        placement: goes into its `LoadModel`.
        channel: what the core says to it; queues what is said before the process listens.
        process: its process.
        model_path: where its host has the model, if that is not this host.
    """

    placement: RankPlacement
    channel: PairChannel[FromExecutor]
    process: RankProcess
    model_path: str = ""


class ExecutorPlacer(Protocol):
    """Starts the ranks of one epoch after the other."""

    def await_hosts(self, now: float) -> bool:
        """Return whether the next epoch can be placed: whether every host that ranks run on is there.

        Args:
            now: seconds on the loop's monotonic clock.

        Raises:
            MachineError: hosts have not come in time, or will never come.
        """

    def place(self, epoch: int) -> list[PlacedRank]:
        """Start fresh processes on fresh sockets, one a rank, and return them by rank. Does not wait for any of them.

        Args:
            epoch: of the group; no two calls have the same.
        """

    def clear(self, epoch: int) -> None:
        """Remove the files of an epoch whose processes were killed: those leave them behind. Clearing twice is fine."""

    def dismiss(self, error: ErrorInfo | None) -> None:
        """Tell other hosts that the engine has ended for good, by an order to stop or an error."""

    def close(self) -> None:
        """Release what is held of other hosts. Closing twice is fine."""


class LocalPlacer:
    """Starts all ranks as children of this process.

    Every epoch gets its own socket paths, because a stopped process would keep a PAIR socket from its successor.

    Args:
        context: the core's ZeroMQ context.
        runtime_dir: where the sockets go.
        config: says how many ranks there are, and how many engines share this host.
        core_epoch: of the core itself.
        module: what to run; tests run a fake.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        runtime_dir: RuntimeDir,
        config: EngineConfig,
        *,
        core_epoch: int,
        module: str = "pagewire.gpu_executor",
    ) -> None:
        self._context = context
        self._runtime_dir = runtime_dir
        self._parallel = config.parallel
        self._log_level = config.log_level
        self._core_epoch = core_epoch
        self._module = module

    def await_hosts(self, now: float) -> bool:
        """See `ExecutorPlacer`: there are none but this one."""
        return True

    def place(self, epoch: int) -> list[PlacedRank]:
        """See `ExecutorPlacer`."""
        world_size, num_engines = self._parallel.mesh.world_size, self._parallel.data_parallel_size
        rendezvous = f"file://{self._rendezvous_path(epoch)}" if world_size > 1 else ""
        return [
            self.start(
                epoch,
                RankPlacement(
                    rank=rank,
                    index_on_host=self._parallel.data_parallel_rank * world_size + rank,
                    num_on_host=num_engines * world_size,
                    rendezvous=rendezvous,
                ),
            )
            for rank in range(world_size)
        ]

    def start(self, epoch: int, placement: RankPlacement) -> PlacedRank:
        """Start one rank, of a placement that the caller has chosen."""
        address = self._address(epoch, placement.rank)
        channel = connect_executor(self._context, address)
        process = ChildProcess(
            self._module,
            name=f"executor {placement.index_on_host}",  # which is the rank, unless several engines share the host
            address=address,
            runtime_dir=self._runtime_dir.path,
            log_level=self._log_level,
            core_epoch=self._core_epoch,
        )
        return PlacedRank(placement, channel, process)

    def clear(self, epoch: int) -> None:
        """See `ExecutorPlacer`."""
        addresses = [self._address(epoch, rank) for rank in range(self._parallel.mesh.world_size)]
        paths = [self._rendezvous_path(epoch), *map(ipc_path, addresses)]
        for path in filter(None, paths):
            path.unlink(missing_ok=True)

    def dismiss(self, error: ErrorInfo | None) -> None:
        """See `ExecutorPlacer`."""

    def close(self) -> None:
        """See `ExecutorPlacer`."""

    def _address(self, epoch: int, rank: int) -> str:
        return self._runtime_dir.executor_address(self._core_epoch, epoch, rank)

    def _rendezvous_path(self, epoch: int) -> Path:
        return self._runtime_dir.rendezvous_path(self._core_epoch, epoch)
