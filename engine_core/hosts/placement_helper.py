"""The process that brings hosts: it has Ray's client, with threads and memory of its own, and dies with the core."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Protocol

from pagewire.ipc.cluster_keys import ClusterKeys
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import MachineError
from pagewire.ipc.process import ChildProcess

logger = logging.getLogger(__name__)

_RAY_CLIENT = "pagewire.engine_core.hosts.ray_helper"
_STOP_TIMEOUT_S = 3.0


class PlacementHelper(Protocol):
    """Whoever brings hosts to the core's door."""

    def keep_running(self, port: int) -> None:
        """Start it, or start it again if it was killed.

        Args:
            port: of this host, where agents find the core.

        Raises:
            MachineError: it has ended of itself.
        """

    def stop(self) -> None:
        """End it, and with it what it has placed."""


class RayHelper:
    """Ray's client in a process of its own: `python -m pagewire.engine_core.hosts.ray_helper`.

    Args:
        config: of the engine.
        keys: handed to the agents.
        core_epoch: of the core.
        module: what to run; tests run another one.
    """

    def __init__(
        self, config: EngineConfig, keys: ClusterKeys | None, *, core_epoch: int, module: str = _RAY_CLIENT
    ) -> None:
        self._module = module
        self._config = config
        self._keys = keys
        self._core_epoch = core_epoch
        self._process: ChildProcess | None = None

    def keep_running(self, port: int) -> None:
        """See `PlacementHelper`."""
        code = None if self._process is None else self._process.exit_code
        if self._process is not None:
            if code is None:
                return
            how = self._process.describe_end()
            self._process.close()
            self._process = None
            if code >= 0:
                raise MachineError(f"Ray's client {how}; its log lines above say more.")
            logger.error("Ray's client %s; starting another one", how)
        self._process = ChildProcess(
            self._module,
            name="ray",
            address=f"tcp://127.0.0.1:{port}",
            runtime_dir=Path(tempfile.gettempdir()),
            log_level=self._config.log_level,
            core_epoch=self._core_epoch,
            config=self._config,
            client_keys=None if self._keys is None else self._keys.for_host(),
        )

    def stop(self) -> None:
        """See `PlacementHelper`."""
        if self._process is not None:
            self._process.stop(_STOP_TIMEOUT_S)
            self._process = None
