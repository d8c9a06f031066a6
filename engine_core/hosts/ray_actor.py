"""What runs on a node of a Ray cluster: an actor that keeps an agent as its child as long as it lives."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from pagewire.checkpoint.resolve import resolve_model
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.curve import ClientKeys
from pagewire.ipc.hosts import HostSeat
from pagewire.ipc.process import ChildProcess

_AGENT = "pagewire.gpu_executor.host_agent"


class AgentOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor is told. It travels as msgpack: Ray itself would pickle it.

    Attributes:
        address: where the core listens for agents, as the nodes reach it.
        config: of the engine; the model's path is that of the core's host.
        seat: of the agent.
        keys: for the core's door.
        module: what to run.
    """

    address: str
    config: EngineConfig
    seat: HostSeat
    keys: ClientKeys | None
    module: str = _AGENT


class HostActor:
    """One bundle of the placement: Ray gives it its GPU or CPUs, and its children inherit them."""

    def run(self, order_frame: bytes) -> int:
        """Run an agent until it ends; return its exit code. It ends with this actor.

        Raises:
            StartError: the model is not on this node, and can't be fetched to it.
        """
        order = msgspec.msgpack.decode(order_frame, type=AgentOrder)
        agent = ChildProcess(
            order.module,
            name=f"host {order.seat.index}",
            address=order.address,
            runtime_dir=Path(tempfile.gettempdir()),
            log_level=order.config.log_level,
            log_format=order.config.log_format,
            config=_with_local_model(order.config),
            client_keys=order.keys,
            host=order.seat,
        )
        while (code := agent.wait(timeout_s=60.0)) is None:
            pass
        agent.close()
        return code


def _with_local_model(config: EngineConfig) -> EngineConfig:
    options = config.model
    if Path(options.model_path).exists():  # on a file system that the nodes share, or in an image that all run
        return config
    download_dir = None if options.download_dir is None else Path(options.download_dir)
    resolved = resolve_model(options.model, revision=options.revision, download_dir=download_dir)
    return msgspec.structs.replace(config, model=msgspec.structs.replace(options, model_path=str(resolved.path)))
