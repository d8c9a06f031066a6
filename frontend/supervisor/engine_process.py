"""The engine core as a child of this process: resolve the model, start the core, stop it in order.

Used alike by `pagewire serve`, `pagewire engine` and `LLM`: whoever starts the engine is its supervisor.
"""

from __future__ import annotations

import logging
import os
import weakref
from pathlib import Path

import msgspec

from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.resolve import resolve_model
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.endpoints import RuntimeDir, ipc_path
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.process import ChildProcess
from pagewire.ipc.step_trace import begin_trace_file, end_trace_file

logger = logging.getLogger(__name__)

# The core gives its executors 5 s to end before it kills them; then it needs a moment itself.
STOP_TIMEOUT_S = 8.0


def prepare_engine(config: EngineConfig) -> EngineConfig:
    """Return the config with its model on local disk; refuse at once what the model can't do.

    Raises:
        ConfigError: the model is not found or not supported, or a flag does not fit it.
    """
    options = config.model
    download_dir = None if options.download_dir is None else Path(options.download_dir)
    resolved = resolve_model(options.model, revision=options.revision, download_dir=download_dir)
    model = load_model_config(resolved.path)
    if options.max_model_len is not None and options.max_model_len > model.max_position:
        raise ConfigError(
            f"--max-model-len {options.max_model_len} is beyond the {model.max_position} tokens that {options.model} "
            "was made for; give at most that."
        )
    return msgspec.structs.replace(config, model=msgspec.structs.replace(options, model_path=str(resolved.path)))


class EngineProcess:
    """A running engine core and the directory of its sockets. It never outlives this process."""

    def __init__(self, config: EngineConfig, *, address: str | None = None) -> None:
        """Start the core.

        Args:
            config: prepared by `prepare_engine`.
            address: where clients connect; by default a socket in a private directory.

        Raises:
            ConfigError: the file of a timeline can't be written.
        """
        trace_path = config.observability.profile_steps
        if trace_path is not None:
            begin_trace_file(trace_path)
        runtime_dir = RuntimeDir()
        self.address = runtime_dir.client_address if address is None else address
        self.process = ChildProcess(
            "pagewire.engine_core",
            name="core",
            address=self.address,
            runtime_dir=runtime_dir.path,
            log_level=config.log_level,
            config=config,
        )
        # Also runs at interpreter exit: a script that forgets to close leaves no process and no file.
        self._stop = weakref.finalize(self, _stop, self.process, runtime_dir, self.address, os.getpid(), trace_path)

    def stop(self) -> None:
        """Stop the core and its executors in order, reap it, remove the sockets. Stopping twice is fine."""
        self._stop()


def _stop(process: ChildProcess, runtime_dir: RuntimeDir, address: str, owner_pid: int, trace_path: str | None) -> None:
    if os.getpid() != owner_pid:
        return  # a fork of the user's program ends; the engine is not its own
    code = process.stop(STOP_TIMEOUT_S)
    logger.debug("engine core ended with exit code %s", code)
    runtime_dir.remove()
    if trace_path is not None:
        end_trace_file(trace_path)
    socket_file = ipc_path(address)
    if socket_file is not None:
        socket_file.unlink(missing_ok=True)  # a killed core leaves it behind
