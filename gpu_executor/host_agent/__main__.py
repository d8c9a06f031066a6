"""The agent's process: `python -m pagewire.gpu_executor.host_agent`, one a host, started there by whoever placed it."""

from __future__ import annotations

import logging
import platform
import sys
from pathlib import Path
from urllib.parse import urlsplit

import zmq

from pagewire.checkpoint.fingerprint import fingerprint
from pagewire.checkpoint.loading import load_model_config
from pagewire.ipc.errors import ConfigError, ProtocolError, StartError
from pagewire.ipc.hosts import AGENT_CRASH_EXIT_CODE, HostHello, StartRank
from pagewire.ipc.logs import setup_logging
from pagewire.ipc.process import Bootstrap, ChildProcess, ParentWatch, read_bootstrap, wake_when_parent_ends
from pagewire.version import __version__

from .agent import HostAgent
from .core_link import CoreLink
from .host_facts import address_towards, count_cpus, count_gpus, find_free_port

logger = logging.getLogger("pagewire.gpu_executor.host_agent")  # __name__ is __main__ here


def main(executor_module: str = "pagewire.gpu_executor") -> int:
    """Serve one engine; return the exit code.

    Args:
        executor_module: what to run; tests run a fake.
    """
    try:
        bootstrap = read_bootstrap()
    except ProtocolError as exc:
        sys.stderr.write(f"{exc.message}\n")
        return ConfigError.exit_code
    setup_logging(bootstrap.name, bootstrap.log_level, bootstrap.log_format)
    wake_when_parent_ends()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        agent = HostAgent(
            describe_host(bootstrap),
            connect=lambda: CoreLink(context, bootstrap.address, bootstrap.client_keys),
            start=lambda order: _start_executor(executor_module, bootstrap, order),
            watch=ParentWatch(bootstrap.parent_pid),
        )
        return agent.run()
    except StartError as exc:
        logger.error("%s", exc.message)
        return exc.exit_code
    # The process's last resort: the next agent finds the host as good as new.
    except Exception:
        logger.exception("the agent crashed")
        return AGENT_CRASH_EXIT_CODE
    finally:
        context.destroy(linger=0)


def describe_host(bootstrap: Bootstrap) -> HostHello:
    """Return what the core is told of this host.

    Raises:
        StartError: the core's host can't be reached, or the model's files not be read.
    """
    assert bootstrap.config is not None, "an agent is told its config"
    assert bootstrap.host is not None, "an agent is told which host it stands for"
    model_path = bootstrap.config.model.model_path
    return HostHello(
        version=__version__,
        index=bootstrap.host.index,
        num_hosts=bootstrap.host.num_hosts,
        name=platform.node(),
        address=address_towards(bootstrap.address),
        model_path=model_path,
        model_fingerprint=fingerprint(load_model_config(Path(model_path))),
        num_cpus=count_cpus(),
        num_gpus=count_gpus(),
        free_port=find_free_port(),
        index_on_host=bootstrap.host.index_on_host,
        num_on_host=bootstrap.host.num_on_host,
    )


def _start_executor(module: str, bootstrap: Bootstrap, order: StartRank) -> ChildProcess:
    return ChildProcess(
        module,
        name=f"executor {order.rank}",
        address=f"tcp://{_host_of(bootstrap.address)}:{order.port}",
        runtime_dir=Path(bootstrap.runtime_dir),
        log_level=bootstrap.log_level,
        core_epoch=order.core_epoch,
        client_keys=bootstrap.client_keys,
    )


def _host_of(address: str) -> str:
    return urlsplit(address).netloc.rpartition(":")[0]


if __name__ == "__main__":
    sys.exit(main())
