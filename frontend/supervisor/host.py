"""A host that computes for a core elsewhere (`pagewire serve MODEL --nnodes N --node-rank 1`): it keeps an agent."""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.errors import MachineError
from pagewire.ipc.hosts import AGENT_CRASH_EXIT_CODE, HostSeat
from pagewire.ipc.logs import setup_logging
from pagewire.ipc.process import ChildProcess
from pagewire.ipc.restart_budget import RestartBudget

from .cluster_secret import read_cluster_keys
from .engine_process import prepare_engine
from .shutdown import exit_at_sigterm

logger = logging.getLogger(__name__)

_AGENT = "pagewire.gpu_executor.host_agent"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_STOP_TIMEOUT_S = 5.0
_PROGRESS_S = 60.0  # an agent that was killed after that was none that can't run


def run_host(config: EngineConfig, *, agent_module: str = _AGENT) -> int:
    """Run this host's agent until host 0 dismisses it or a signal comes; return the exit code.

    Args:
        config: with the number of this host.
        agent_module: what to run; tests run one with fake executors.

    Raises:
        StartError: what the command line asks can't be met, or the machine lacks something.
    """
    parallel = config.parallel
    setup_logging(f"host {parallel.node_rank}", config.log_level, config.log_format)
    exit_at_sigterm()
    config = prepare_engine(config)
    cluster_keys = read_cluster_keys(parallel)
    address = f"tcp://{parallel.master_addr}:{parallel.master_port}"
    logger.info("this host computes for host 0 at %s, which answers all requests", address)
    if parallel.master_addr in _LOOPBACK:
        logger.warning(
            "--master-addr %s is this host itself: give host 0's, unless it runs here too", parallel.master_addr
        )
    runtime_dir = RuntimeDir()

    def start() -> ChildProcess:
        return ChildProcess(
            agent_module,
            name=f"host {parallel.node_rank}",
            address=address,
            runtime_dir=runtime_dir.path,
            log_level=config.log_level,
            config=config,
            client_keys=None if cluster_keys is None else cluster_keys.for_host(),
            host=HostSeat(index=parallel.node_rank, num_hosts=parallel.nnodes),
        )

    progress = f"running for {_PROGRESS_S:g} s"
    budget = RestartBudget("the agent", config.supervision.max_restarts, progress=progress)
    try:
        with _signals() as stop_fd:
            return _keep_running(start, stop_fd, budget)
    finally:
        runtime_dir.remove()


def _keep_running(start: Callable[[], ChildProcess], stop_fd: int, budget: RestartBudget) -> int:
    """Start an agent whenever one was killed, until one ends by itself or a signal comes; return the exit code."""
    while True:
        agent, started = start(), time.monotonic()
        readable = _wait_for(stop_fd, agent.death_fd)
        if stop_fd in readable:
            agent.stop(_STOP_TIMEOUT_S)
            return 0
        code = agent.wait(timeout_s=1.0)
        assert code is not None, "its death notice came"
        how = agent.describe_end()
        agent.close()
        if code >= 0 and code != AGENT_CRASH_EXIT_CODE:  # it has said why
            return code
        if time.monotonic() - started > _PROGRESS_S:
            budget.step_finished()
        budget.count_death(is_failed_start=False)
        cause = budget.exhausted_by()
        if cause is not None:
            raise MachineError(f"This host gives up: {cause}. Last, the agent {how}.")
        logger.error("the agent %s; starting another one", how)


def _wait_for(*fds: int) -> set[int]:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll()}


@contextmanager
def _signals() -> Iterator[int]:
    """Yield a descriptor that becomes readable at SIGTERM and SIGINT."""
    wake_fd, signal_fd = os.pipe()
    os.set_blocking(signal_fd, False)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    fd_before = signal.set_wakeup_fd(signal_fd)
    try:
        yield wake_fd
    finally:
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(wake_fd)
        os.close(signal_fd)
