"""Executors on another host: its agent starts them, and whatever ends there, the engine goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pagewire.engine_core.engine import Engine
from pagewire.gpu_executor.host_agent.host_facts import find_free_port
from pagewire.ipc.cluster_keys import make_cluster_keys
from pagewire.ipc.hosts import HostSeat
from pagewire.ipc.outputs import UtilityResult
from pagewire.ipc.process import ChildProcess
from pagewire.ipc.requests import CallUtility
from tests.support.children import children_of, is_alive, make_importable, wait_until
from tests.support.running_core import ClusterHosts, core_config, request, running_core, solo_tokens, until_serving

pytestmark = pytest.mark.slow

WAIT_S = 20.0


@dataclass
class Host:
    """Host 1, which this machine plays too."""

    cluster: ClusterHosts
    num_hosts: int = 2

    def start_agent(self) -> ChildProcess:
        config = core_config(tp=2, hosts=self.cluster)
        return ChildProcess(
            "tests.support.fake_host_agent",
            name="host 1",
            address=f"tcp://127.0.0.1:{self.cluster.port}",
            runtime_dir=Path("/"),
            log_level="info",
            config=config,
            client_keys=self.cluster.keys.for_host(),
            host=HostSeat(index=1, num_hosts=self.num_hosts),
        )


@contextmanager
def agent_of(host: Host) -> Iterator[ChildProcess]:
    agent = host.start_agent()
    try:
        yield agent
    finally:
        if agent.death_fd >= 0:
            agent.kill()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    make_importable(monkeypatch)
    return Host(ClusterHosts(num_hosts=2, port=find_free_port(), keys=make_cluster_keys()))


def executor_of(agent: ChildProcess) -> int:
    """The executor that an agent has started, once it has."""
    wait_until(lambda: len(children_of(agent.pid)) == 1, WAIT_S, "a start")
    (pid,) = children_of(agent.pid)
    return pid


def test_executor_that_is_killed_on_another_host_is_replaced_there(monkeypatch, host: Host):
    with agent_of(host) as agent, running_core(monkeypatch, tp=2, hosts=host.cluster) as (core, client):
        client.greet()
        first = executor_of(agent)
        os.kill(first, signal.SIGKILL)
        asked = request(1, 5, 6, 7, max_tokens=20)
        client.send(asked)
        assert client.until_end(1)[0] == solo_tokens(asked)
        assert executor_of(agent) != first
        assert core.stop() == 0
        assert agent.wait(WAIT_S) == 0  # the engine has ended in order, and so do its hosts


def test_executors_of_other_hosts_end_while_the_engine_sleeps_and_come_again(monkeypatch, host: Host):
    with agent_of(host) as agent, running_core(monkeypatch, tp=2, hosts=host.cluster) as (core, client):
        client.greet()
        first = executor_of(agent)
        client.send(CallUtility(call_id=1, method="sleep", args=[1, "keep"]))
        while not isinstance(client.receive(), UtilityResult):
            pass
        assert not is_alive(first)
        asked = request(1, 5, 6, 7, max_tokens=20)
        client.send(asked)
        client.send(CallUtility(call_id=2, method="wake_up"))
        assert client.until_end(1)[0] == solo_tokens(asked)
        assert executor_of(agent) != first
        assert core.stop() == 0
        assert agent.wait(WAIT_S) == 0


def test_host_whose_agent_was_killed_comes_back_with_the_next_one(monkeypatch, host: Host):
    with agent_of(host) as agent, running_core(monkeypatch, tp=2, hosts=host.cluster) as (_, client):
        client.greet()
        executor = executor_of(agent)
        agent.kill()
        wait_until(lambda: not is_alive(executor), WAIT_S, "the end of an executor without agent")
        with agent_of(host):
            asked = request(1, 5, 6, 7)
            client.send(asked)
            assert client.until_end(1)[0] == solo_tokens(asked)


def test_host_that_is_silent_is_given_up_and_taken_back(monkeypatch, host: Host):
    with agent_of(host) as agent, running_core(monkeypatch, tp=2, hosts=host.cluster) as (_, client):
        client.greet()
        executor = executor_of(agent)
        os.kill(agent.pid, signal.SIGSTOP)  # an idle engine notices as well
        until_serving(client, is_serving=False)
        os.kill(agent.pid, signal.SIGCONT)
        until_serving(client, is_serving=True)
        assert not is_alive(executor)


def test_agent_finds_the_next_core_at_the_same_address(monkeypatch, host: Host):
    def fail(engine: Engine, now: float) -> None:
        raise RuntimeError("a bug")

    with agent_of(host) as agent:
        with monkeypatch.context() as patch, running_core(patch, tp=2, hosts=host.cluster) as (core, client):
            client.greet()
            executor = executor_of(agent)
            patch.setattr(Engine, "schedule", fail)
            client.send(request(1, 5, 6))
            assert core.join() == 70
        with running_core(monkeypatch, tp=2, hosts=host.cluster, core_epoch=2) as (core, client):
            assert client.greet().core_epoch == 2
            assert not is_alive(executor)
            asked = request(1, 5, 6)
            client.send(asked)
            assert client.until_end(1)[0] == solo_tokens(asked)
            assert core.stop() == 0
            assert agent.wait(WAIT_S) == 0


def test_engine_that_gives_up_takes_its_hosts_with_it(monkeypatch, host: Host):
    with agent_of(host) as agent, running_core(monkeypatch, tp=2, hosts=host.cluster, max_restarts=0) as (core, client):
        client.greet()
        os.kill(executor_of(agent), signal.SIGKILL)
        assert core.join() == 1
        assert agent.wait(WAIT_S) == 1


def test_host_of_another_engine_is_refused(monkeypatch, host: Host):
    stranger = Host(host.cluster, num_hosts=3)
    with agent_of(stranger) as agent, running_core(monkeypatch, tp=2, hosts=host.cluster):
        assert agent.wait(WAIT_S) == 2


def test_host_with_another_secret_is_not_let_in(monkeypatch, host: Host):
    stranger = Host(ClusterHosts(num_hosts=2, port=host.cluster.port, keys=make_cluster_keys()))
    with agent_of(stranger) as agent, running_core(monkeypatch, tp=2, hosts=host.cluster) as (_, client):
        assert not client.has_message()
        assert agent.exit_code is None
