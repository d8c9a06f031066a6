"""The core's hold on its executor processes: start them, send a step to every rank, collect, notice a death."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import zmq

from pagewire.ipc.adapters import Adapter
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import ProtocolError
from pagewire.ipc.requests import Message
from pagewire.ipc.steps import FromExecutor, LoadModel, Shutdown

from .placer import ExecutorPlacer, PlacedRank

STOP_TIMEOUT_S = 1.0  # an executor has nothing to save: whoever does not end by then hangs or was stopped


class ProcessDeath(NamedTuple):
    """How a rank's process ended ("executor 0 was killed by signal 9"), and its exit code, negative for a signal."""

    rank: int
    text: str
    exit_code: int


class ExecutorGroup:
    """One epoch of executors: fresh processes on fresh sockets, one a rank."""

    def __init__(
        self,
        placer: ExecutorPlacer,
        config: EngineConfig,
        poller: zmq.Poller,
        *,
        epoch: int,
        num_blocks: int | None = None,
        adapters: Sequence[Adapter] = (),
    ) -> None:
        """Start the processes and have them load the model.

        Args:
            placer: starts them.
            config: sent to every rank by `LoadModel`.
            poller: watches the sockets and the death notices as long as there are any.
            epoch: counts the groups that this core has started.
            num_blocks: the pool size that an earlier epoch settled, None to measure it.
            adapters: to be read as well.
        """
        self.epoch = epoch
        self._placer = placer
        self._poller = poller
        ranks = placer.place(epoch)
        self._ranks: dict[int, PlacedRank] = dict(enumerate(ranks))  # as long as their processes are not reaped
        self._channels = [rank.channel for rank in ranks]
        for rank in ranks:
            poller.register(rank.channel.socket, zmq.POLLIN)
            poller.register(rank.process.death_fd, zmq.POLLIN)
            load = LoadModel(
                executor_epoch=epoch,
                config=_config_on_host(config, rank.model_path),
                num_blocks=num_blocks,
                placement=rank.placement,
                adapters=list(adapters),
            )
            rank.channel.send(load)

    def send(self, message: Message) -> None:
        """Send one message to every rank."""
        for channel in self._channels:
            channel.send(message)

    def drain(self) -> Iterator[tuple[int, FromExecutor]]:
        """Yield (rank, message) of what the executors have sent, as far as it belongs to this epoch.

        Raises:
            ProtocolError: one of them has sent what can't be read.
        """
        for rank in range(len(self._channels)):
            while (message := self._try_recv(rank)) is not None:
                if getattr(message, "executor_epoch", self.epoch) == self.epoch:
                    yield rank, message

    def wait_for_news(self, timeout_s: float, *, of_deaths: bool = False) -> None:
        """Return when an executor has sent something or one more has died, at the latest after `timeout_s`.

        Args:
            timeout_s: seconds.
            of_deaths: whether what executors send does not matter.
        """
        poller = zmq.Poller()
        for channel in self._channels if not of_deaths else ():
            poller.register(channel.socket, zmq.POLLIN)
        for rank in self._ranks.values():
            if rank.process.exit_code is None:
                poller.register(rank.process.death_fd, zmq.POLLIN)
        poller.poll(int(timeout_s * 1000))

    def find_deaths(self) -> list[ProcessDeath]:
        """Return what ended the processes that are dead, by rank."""
        ended = [(number, rank.process, rank.process.exit_code) for number, rank in self._ranks.items()]
        return [
            ProcessDeath(number, f"{process.name} {process.describe_end()}", code)
            for number, process, code in ended
            if code is not None
        ]

    @property
    def is_dead(self) -> bool:
        """Whether every rank's process is dead."""
        return all(rank.process.exit_code is not None for rank in self._ranks.values())

    def begin_stop(self) -> None:
        """Order every rank to end at once, in order, and hear no more of them; `begin_kill` follows in any case."""
        for rank in self._ranks.values():
            rank.process.ask_to_stop()
        self._close_channels()

    def begin_kill(self) -> None:
        """Kill every rank, without waiting for their ends, and close the sockets."""
        for rank in self._ranks.values():
            rank.process.begin_kill()
        self._close_channels()
        self._placer.clear(self.epoch)

    def reap(self) -> bool:
        """Return whether all ranks are dead; after `begin_kill` only."""
        for death in self.find_deaths():
            self._forget(death.rank).process.close()
        return not self._ranks

    def stop(self, *, grace_s: float = 0.0) -> None:
        """Order every rank to stop, kill those that do not, reap all, close the sockets.

        Args:
            grace_s: how long the ranks may take to end by themselves after `Shutdown`, before they are made to. Without
                grace they end at once, in whatever they do.
        """
        self.send(Shutdown())
        self._wait(grace_s)
        for rank in self._ranks.values():
            rank.process.ask_to_stop()
        self._wait(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """Kill every rank that runs, reap all, close the sockets."""
        self.begin_kill()
        for number in list(self._ranks):
            self._forget(number).process.kill()

    def _close_channels(self) -> None:
        for channel in self._channels:
            self._poller.unregister(channel.socket)
            channel.close()
        self._channels.clear()

    def _try_recv(self, rank: int) -> FromExecutor | None:
        try:
            return self._channels[rank].try_recv()
        except ProtocolError as exc:
            raise ProtocolError(f"{self._ranks[rank].process.name} sent what can't be read: {exc.message}") from exc

    def _wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for rank in self._ranks.values():
            rank.process.wait(max(deadline - time.monotonic(), 0.0))

    def _forget(self, number: int) -> PlacedRank:
        rank = self._ranks.pop(number)
        self._poller.unregister(rank.process.death_fd)
        return rank


def _config_on_host(config: EngineConfig, model_path: str) -> EngineConfig:
    if not model_path:
        return config
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, model_path=model_path))
