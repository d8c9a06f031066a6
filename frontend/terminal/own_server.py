"""A server of this process's own, for commands that are given a model instead of an address.

It is `pagewire serve` in a thread: the engine's processes are children of this one and end with it, however it
ends, and its HTTP frontend listens at a Unix socket in a folder that nobody else may enter.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import MachineError
from pagewire.ipc.outputs import EngineInfo
from pagewire.ipc.server_config import ServerConfig

from ..client.loop_thread import Job, LoopThread
from ..http.listener import open_listeners
from ..supervisor.engine_process import EngineProcess, prepare_engine, start_cores, stop_cores
from ..supervisor.running_fleet import RunningFleet
from ..supervisor.serving import serve_http
from ..supervisor.shutdown import StopRequests
from ..supervisor.startup_report import StartupReport


class OwnServer:
    """Starts the engine and serves it; whoever makes it closes it.

    Attributes:
        uds: the path of its socket.
        info: what is served.

    Args:
        config: of the engine.

    Raises:
        StartError: the engine can't start.
    """

    def __init__(self, config: EngineConfig) -> None:
        config = prepare_engine(config)
        self._ending = contextlib.ExitStack()
        self._requests: StopRequests | None = None
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.close)
            directory = self._ending.enter_context(tempfile.TemporaryDirectory(prefix="pagewire-"))
            self.uds = str(Path(directory) / "http.sock")
            http = ServerConfig(uds=self.uds, disable_log_stats=True)
            listeners = self._ending.enter_context(open_listeners(http))
            cores = start_cores(config)
            self._ending.callback(stop_cores, cores)
            # Before it is ready it owes nobody anything, and one that loads its model would take its time to end.
            on_failure.callback(_begin_kill, cores)
            thread = LoopThread("server")
            self._ending.callback(thread.close)
            ready: Future[EngineInfo] = Future()
            job = thread.start(self._serve(config, http, listeners, cores, ready))
            self._ending.callback(self._stop_serving, thread, job)
            self.info = ready.result()
            on_failure.pop_all()

    def close(self) -> None:
        """End what runs, and all processes. Closing twice is fine."""
        self._ending.close()

    async def _serve(
        self,
        config: EngineConfig,
        http: ServerConfig,
        listeners: Sequence[socket.socket],
        cores: Sequence[EngineProcess],
        ready: Future[EngineInfo],
    ) -> None:
        """Serve until `close`; the future gets what is served, or why nothing is."""
        self._requests = StopRequests()
        fleet = RunningFleet(cores)
        try:
            await serve_http(
                lambda: fleet.connect("terminal"), config.model.model_path, config, http, listeners,
                self._requests, StartupReport(), lambda client: ready.set_result(client.info),
            )  # fmt: skip
        except (Exception, asyncio.CancelledError) as exc:
            if not ready.done():
                ready.set_exception(exc)
        finally:
            await fleet.aclose()
        if not ready.done():
            ready.set_exception(MachineError("the engine ended before it was ready."))

    def _stop_serving(self, thread: LoopThread, job: Job[None]) -> None:
        async def stop() -> None:
            if self._requests is not None:
                self._requests.first.set()
                self._requests.second.set()

        thread.run(stop())
        job.result()


def _begin_kill(cores: Sequence[EngineProcess]) -> None:
    for core in cores:
        core.process.begin_kill()
