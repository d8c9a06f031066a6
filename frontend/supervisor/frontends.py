"""Several frontend processes on one port: started, replaced when one ends, and stopped in order.

A frontend that dies takes its own connections with it and nothing else: the engine aborts what it had asked for, and
the others go on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import MachineError
from pagewire.ipc.process import ChildProcess, describe_exit
from pagewire.ipc.restart_budget import RestartBudget
from pagewire.ipc.server_config import ServerConfig

from ..client.engine_client import AsyncEngineClient
from ..exchange.switchboard import Switchboard

logger = logging.getLogger(__name__)

MODULE = "pagewire.frontend.supervisor.frontend_process"
STEADY_S = 10.0  # one that has served for so long has a new start if it dies
END_S = 5.0  # a frontend whose requests are done, or cut off, needs a moment to tell its clients
REAP_S = 1.0


class Frontends:
    """See the module. Make it on the event loop that the processes are watched by.

    Args:
        engine_config: its model is on local disk, or the engine's business if it runs already.
        server_config: all about HTTP, and how many there are.
        address: where the engine listens.
        listeners: of `open_listeners`.
        module: what to run; tests run one with a fault.
    """

    def __init__(
        self,
        engine_config: EngineConfig,
        server_config: ServerConfig,
        address: str,
        listeners: Sequence[socket.socket],
        *,
        module: str = MODULE,
    ) -> None:
        self._module = module
        self._engine_config = engine_config
        self._server_config = server_config
        self._address = address
        self._listener_fds = [listener.fileno() for listener in listeners]
        self._children: dict[int, _Frontend] = {}
        self._switchboard = Switchboard(server_config.api_server_count)
        self._num_awaited = server_config.api_server_count
        self._are_ready = asyncio.Event()
        self._has_failed = asyncio.Event()
        self._failure: MachineError | None = None
        self._is_stopping = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the frontends running while the context is open; on leaving, end them."""
        keeping = [asyncio.create_task(self._keep(index)) for index in range(self._server_config.api_server_count)]
        try:
            yield
        finally:
            self._is_stopping = True
            for child in self._children.values():
                child.process.ask_to_stop()
            await asyncio.wait(keeping, timeout=END_S)
            for child in self._children.values():
                child.process.begin_kill()
            await asyncio.gather(*keeping, return_exceptions=True)

    async def ready(self) -> None:
        """Wait until all have begun to serve.

        Raises:
            MachineError: one can't.
        """
        await self._unless_failed(self._are_ready.wait())

    async def watch(self, client: AsyncEngineClient) -> None:
        """Wait until `client` knows of the engine's end.

        Raises:
            MachineError: a frontend keeps ending.
        """
        await self._unless_failed(client.wait_dead())

    async def drain(self, timeout_s: float) -> None:
        """Have all refuse new requests; return when they have answered the others and ended, or after `timeout_s`."""
        self._is_stopping = True
        for child in self._children.values():
            child.process.ask_to_finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s + END_S):
                await asyncio.gather(*(child.has_ended.wait() for child in self._children.values()))

    async def _keep(self, index: int) -> None:
        """Start a frontend whenever the last one has ended, until this process stops or the budget is spent."""
        name = f"frontend {index}"
        budget = RestartBudget(
            name, self._engine_config.supervision.max_restarts, progress=f"serving for {STEADY_S:g} s"
        )
        has_served = False
        while True:
            try:
                process, ready_fd, line = self._start(name, index)
            except OSError as exc:
                self._fail(f"{name} can't be started: {exc.strerror or exc}.")
                return
            child = self._children[index] = _Frontend(process, ready_fd)
            attached = asyncio.create_task(self._switchboard.attach(index, line))
            if await child.until_ready():
                budget.start_succeeded()
                if not has_served:
                    has_served = True
                    self._count_ready()
            code = await child.until_ended()
            attached.cancel()
            await asyncio.wait({attached})
            if self._stops():
                return
            if not has_served:
                self._fail(f"{name} {describe_exit(code)} before it was ready; its log lines above say more.")
                return
            if child.served_s >= STEADY_S:
                budget.step_finished()
            budget.count_death(is_failed_start=code >= 0 and not child.is_ready)
            cause = budget.exhausted_by()
            if cause is not None:
                self._fail(f"Giving up: {cause}.")
                return
            logger.error("%s %s; starting another", name, describe_exit(code))

    def _stops(self) -> bool:
        return self._is_stopping

    def _start(self, name: str, index: int) -> tuple[ChildProcess, int, socket.socket]:
        """Return a new process, a descriptor from which a byte comes when it serves, and the line to it."""
        ready_fd, its_fd = os.pipe()
        line, its_line = socket.socketpair()
        process = ChildProcess(
            self._module,
            name=name,
            address=self._address,
            runtime_dir=Path(),
            log_level=self._engine_config.log_level,
            config=self._engine_config,
            server_config=self._server_config,
            listener_fds=self._listener_fds,
            ready_fd=its_fd,
            frontend_index=index,
            exchange_fd=its_line.fileno(),
            pass_fds=[*self._listener_fds, its_fd, its_line.fileno()],
        )
        os.close(its_fd)
        its_line.close()
        return process, ready_fd, line

    def _count_ready(self) -> None:
        self._num_awaited -= 1
        if self._num_awaited == 0:
            self._are_ready.set()

    def _fail(self, text: str) -> None:
        if self._failure is None:
            self._failure = MachineError(text)
            self._has_failed.set()

    async def _unless_failed(self, work: Awaitable[object]) -> None:
        """Await `work`.

        Raises:
            MachineError: a frontend has failed first.
        """
        working = asyncio.ensure_future(work)
        failing = asyncio.create_task(self._has_failed.wait())
        try:
            await asyncio.wait({working, failing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            failing.cancel()
        if self._failure is not None:
            raise self._failure


class _Frontend:
    """One process, watched by the event loop.

    Attributes:
        is_ready: whether it has begun to serve.
        served_s: for how long it has done so, once it has ended.
        has_ended: set by its end.
    """

    def __init__(self, process: ChildProcess, ready_fd: int) -> None:
        self.process = process
        self.is_ready = False
        self.served_s = 0.0
        self.has_ended = asyncio.Event()
        self._ready_fd = ready_fd
        self._has_word = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ready_fd, self._take_word)
        self._loop.add_reader(process.death_fd, self._take_death)

    async def until_ready(self) -> bool:
        """Wait until it serves, and return True; or until it has ended."""
        await self._has_word.wait()
        return self.is_ready

    async def until_ended(self) -> int:
        """Wait for its end; return its exit code."""
        await self.has_ended.wait()
        return await asyncio.to_thread(self.process.stop, REAP_S)

    def _take_word(self) -> None:
        self.is_ready = bool(os.read(self._ready_fd, 1))  # nothing: it has ended, and with it the pipe
        self._ready_at = self._loop.time()
        self._loop.remove_reader(self._ready_fd)
        os.close(self._ready_fd)
        self._has_word.set()

    def _take_death(self) -> None:
        self._loop.remove_reader(self.process.death_fd)
        if self.is_ready:
            self.served_s = self._loop.time() - self._ready_at
        self.has_ended.set()
