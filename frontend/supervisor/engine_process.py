"""The engine core as a child of this process: resolve the model, start the core, stop it in order.

Used alike by `pagewire serve`, `pagewire engine` and `LLM`: whoever starts the engine is its supervisor.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from pagewire.checkpoint.draft_model import check_draft_model
from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.model_config import ModelConfig
from pagewire.checkpoint.placement import Placement, check_placement
from pagewire.checkpoint.resolve import resolve_model
from pagewire.ipc.adapters import Adapter
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.curve import ClientKeys, ServerKeys
from pagewire.ipc.endpoints import RuntimeDir, core_address, ipc_path, reachable_address
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.lora_config import LoraModule, spell_module
from pagewire.ipc.process import ChildProcess
from pagewire.ipc.step_trace import begin_trace_file, end_trace_file

from .cluster_secret import read_cluster_keys

logger = logging.getLogger(__name__)

# The core gives its executors a second to end before it kills them, and three more for a timeline; then it needs a
# moment itself.
STOP_TIMEOUT_S = 8.0
CORE_MODULE = "pagewire.engine_core"


def prepare_engine(config: EngineConfig) -> EngineConfig:
    """Return the config with its model on local disk; refuse at once what the model can't do.

    Raises:
        ConfigError: the model is not found or not supported, or a flag does not fit it.
    """
    if config.parallel.distributed_executor_backend == "ray" and importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "--distributed-executor-backend ray needs Ray, which is not installed here: pip install 'pagewire[ray]', "
            "on all nodes."
        )
    options = config.model
    download_dir = None if options.download_dir is None else Path(options.download_dir)
    resolved = resolve_model(options.model, revision=options.revision, download_dir=download_dir)
    model = load_model_config(resolved.path)
    mesh, divides_experts = config.parallel.mesh, config.parallel.enable_expert_parallel
    check_placement(model, Placement(tp=mesh.tp, pp=mesh.pp, divides_experts=divides_experts))
    if options.max_model_len is not None and options.max_model_len > model.max_position:
        raise ConfigError(
            f"--max-model-len {options.max_model_len} is beyond the {model.max_position} tokens that {options.model} "
            "was made for; give at most that."
        )
    config = msgspec.structs.replace(config, model=msgspec.structs.replace(options, model_path=str(resolved.path)))
    return _with_draft_model(config, model)


def _with_draft_model(config: EngineConfig, target: ModelConfig) -> EngineConfig:
    """Return the config with the model that guesses, if one does, on local disk as well."""
    speculative, mesh = config.speculative, config.parallel.mesh
    if speculative.method != "draft_model":
        return config
    download_dir = None if config.model.download_dir is None else Path(config.model.download_dir)
    resolved = resolve_model(speculative.speculative_model, download_dir=download_dir)
    draft = load_model_config(resolved.path)
    check_draft_model(draft, target, config.model.max_model_len or target.max_position)
    # Each rank of the last stage has its part of all layers.
    check_placement(draft, Placement(tp=mesh.tp, divides_experts=config.parallel.enable_expert_parallel))
    speculative = msgspec.structs.replace(speculative, speculative_model_path=str(resolved.path))
    return msgspec.structs.replace(config, speculative=speculative)


class EngineProcess:
    """An engine core, the directory of its sockets, and the next core when one has ended. None outlives this process.

    Attributes:
        config: what every core is started with.
        listen_address: where the core listens.
        address: where this process reaches it.
        client_keys: with which, if it listens with keys; made for this run.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        address: str | None = None,
        keys: ServerKeys | None = None,
        core_module: str = CORE_MODULE,
    ) -> None:
        """Start the first core.

        Args:
            config: prepared by `prepare_engine`.
            address: where clients connect; by default a socket in a private directory.
            keys: what clients prove theirs to, on tcp://.
            core_module: what to run; tests run one with a fault.

        Raises:
            ConfigError: the file of a timeline can't be written, or the secret of an engine's hosts not be read.
        """
        self.config = config
        cluster_keys = read_cluster_keys(config.parallel)
        rank = config.parallel.data_parallel_rank
        trace_path = config.observability.profile_steps if rank == 0 else None  # a file of all cores
        if trace_path is not None:
            begin_trace_file(trace_path)
        runtime_dir = RuntimeDir()
        listen = runtime_dir.client_address if address is None else address
        self.listen_address = listen
        self.address = reachable_address(listen)
        self.client_keys: ClientKeys | None = None
        if keys is not None:
            keys, self.client_keys = keys.with_client("the supervisor")

        engine_id = secrets.token_hex(8)

        def start_core(epoch: int, num_blocks: int | None, adapters: Sequence[Adapter] | None) -> ChildProcess:
            return ChildProcess(
                core_module,
                name="core" if config.parallel.data_parallel_size == 1 else f"core {rank}",
                address=listen,
                runtime_dir=runtime_dir.path,
                log_level=config.log_level,
                core_epoch=epoch,
                num_blocks=num_blocks,
                config=config if adapters is None else _with_adapters(config, adapters),
                server_keys=keys,
                cluster_keys=cluster_keys,
                engine_id=engine_id,
            )

        self._core = _Core(start_core, runtime_dir)
        self._owner_pid = os.getpid()
        # Also runs at interpreter exit: a script that forgets to close leaves no process and no file.
        self._stop = weakref.finalize(self, _stop, self._core, runtime_dir, self.address, self._owner_pid, trace_path)

    @property
    def process(self) -> ChildProcess:
        """The core that was started last."""
        return self._core.process

    @property
    def core_epoch(self) -> int:
        """Which core that is, from 1 on."""
        return self._core.epoch

    def restart(self, num_blocks: int, adapters: Sequence[Adapter] = ()) -> None:
        """Start the next core at the same address, after the last one is killed and reaped.

        Args:
            num_blocks: the pool size of the first. Measured anew it might be smaller, and requests would fit no longer.
            adapters: that the last one had, some of them loaded since its start.

        Raises:
            OSError: the system starts no process.
        """
        if self._stop.alive:
            self._core.replace(num_blocks, adapters)

    def ask_to_stop(self) -> None:
        """Have the core begin to stop, for several to do so at once."""
        if self._stop.alive and os.getpid() == self._owner_pid:
            self._core.process.ask_to_stop()

    def stop(self) -> None:
        """Stop the core and its executors in order, reap it, remove the sockets. Stopping twice is fine."""
        self._stop()


def start_cores(
    config: EngineConfig,
    *,
    address: str | None = None,
    keys: ServerKeys | None = None,
    core_module: str = CORE_MODULE,
) -> list[EngineProcess]:
    """Start every core of an engine; arguments and errors as `EngineProcess`.

    Args:
        config: prepared by `prepare_engine`.
        address: of the first core, by default a socket in its private directory; the others listen beside it, see
            `core_address`.
        keys: of them all.
        core_module: what to run.
    """
    if config.parallel.node_rank > 0:
        raise ConfigError(
            f"--node-rank {config.parallel.node_rank} has no engine of its own: host 0 has. Give it to `pagewire serve "
            "MODEL`, which then computes for that engine."
        )
    cores: list[EngineProcess] = []
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(stop_cores, cores)
        for rank in range(config.parallel.data_parallel_size):
            parallel = msgspec.structs.replace(config.parallel, data_parallel_rank=rank)
            core_config = msgspec.structs.replace(config, parallel=parallel)
            listen = None if address is None else core_address(address, rank)
            cores.append(EngineProcess(core_config, address=listen, keys=keys, core_module=core_module))
            address = cores[0].listen_address
        on_failure.pop_all()
    return cores


def stop_cores(cores: Sequence[EngineProcess]) -> None:
    """Stop all cores in order; the first one last, with which their timeline ends. Stopping twice is fine."""
    for core in cores:
        core.ask_to_stop()
    for core in reversed(cores):
        core.stop()


class _Core:
    """The core that runs now. It is apart, because what is stopped at the end must not hold the `EngineProcess`."""

    def __init__(
        self, start: Callable[[int, int | None, Sequence[Adapter] | None], ChildProcess], runtime_dir: RuntimeDir
    ) -> None:
        self._start = start
        self._runtime_dir = runtime_dir
        self.epoch = 1
        self.process = start(1, None, None)

    def replace(self, num_blocks: int, adapters: Sequence[Adapter]) -> None:
        self.process.kill()
        self._runtime_dir.remove_executors(self.epoch)
        self.epoch += 1
        self.process = self._start(self.epoch, num_blocks, adapters)


def _with_adapters(config: EngineConfig, adapters: Sequence[Adapter]) -> EngineConfig:
    modules = (LoraModule(each.name, each.path, each.base_model_name, each.digest) for each in adapters)
    lora = msgspec.structs.replace(config.lora, lora_modules=tuple(map(spell_module, modules)))
    return msgspec.structs.replace(config, lora=lora)


def _stop(core: _Core, runtime_dir: RuntimeDir, address: str, owner_pid: int, trace_path: str | None) -> None:
    if os.getpid() != owner_pid:
        return  # a fork of the user's program ends; the engine is not its own
    code = core.process.stop(STOP_TIMEOUT_S)
    logger.debug("engine core ended with exit code %s", code)
    runtime_dir.remove()
    if trace_path is not None:
        end_trace_file(trace_path)
    socket_file = ipc_path(address)
    if socket_file is not None:
        socket_file.unlink(missing_ok=True)  # a killed core leaves it behind
