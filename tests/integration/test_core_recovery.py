"""The core and executors that die, hang or answer nonsense: what they had in hand is computed by the next."""

from __future__ import annotations

import os
import signal

import msgspec
import pytest

from pagewire.ipc.outputs import Goodbye, RequestEnd, StepOutputs, UtilityResult
from pagewire.ipc.requests import CallUtility, Ping
from tests.support.children import is_alive
from tests.support.fake_executor_process import CAPTURES, CONFUSED, EXITS, EXITS_ONCE, FAILS, HANGS_LATER, HANGS_ONCE
from tests.support.running_core import Client, request, running_core, solo_tokens, until_serving


@pytest.mark.parametrize(
    ("order", "cause"), [(EXITS, "exit code 3"), (FAILS, "the step went wrong"), (CONFUSED, "answered step")]
)
def test_request_that_ends_executors_fails_alone_with_the_cause(monkeypatch, order: int, cause: str):
    with running_core(monkeypatch) as (_, client):
        client.greet()
        other = request(1, 5, 6, max_tokens=30)
        client.send(other)
        client.send(request(2, order))
        tokens, end = client.until_end(2)
        assert tokens == []
        assert end.error is not None
        assert end.error.kind == "PoisonRequest"
        assert cause in end.error.message
        client.send(CallUtility(call_id=1, method="check_invariants"))
        client.send(request(3, 7, 8))
        assert client.until_end(3)[1].error is None


@pytest.mark.parametrize("order", [EXITS_ONCE, HANGS_ONCE])
def test_streams_go_on_after_an_executors_end_with_the_tokens_that_were_theirs(monkeypatch, order: int):
    with running_core(monkeypatch, stall_limit=1.0) as (_, client):
        client.greet()
        first, second = request(1, 5, 6, max_tokens=150), request(2, order, max_tokens=3)
        client.send(first)
        client.send(second)
        stats = until_serving(client, False)
        assert (stats.num_running, stats.num_used_blocks, stats.num_executor_restarts) == (0, 0, 1)
        collected: dict[int, list[int]] = {}
        ends: dict[int, RequestEnd] = {}
        while len(ends) < 2:
            message = client.receive()
            if isinstance(message, StepOutputs):
                for delta in message.deltas:
                    collected.setdefault(delta.request_id, []).extend(delta.token_ids)
                ends |= {end.request_id: end for end in message.ends}
        assert not any(end.error for end in ends.values())
        assert collected[2] == solo_tokens(second)
        expected = solo_tokens(first)
        assert collected[1] == expected[-len(collected[1]) :]


def test_stopped_executor_is_found_at_the_stall_limit_and_replaced(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, stall_limit=1.0) as (core, client):
        client.greet()
        stopped = core.executor_pid
        os.kill(stopped, signal.SIGSTOP)
        message = request(1, 5, 6)
        client.send(message)
        assert client.until_end(1)[0] == solo_tokens(message)
        assert not is_alive(stopped)
        assert core.executor_pid != stopped


def test_announced_work_between_steps_may_take_longer_than_a_step(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, stall_limit=1.0) as (core, client):
        client.greet()
        executor = core.executor_pid
        message = request(1, CAPTURES, 5, max_tokens=3)
        client.send(message)  # its second step waits for work that takes longer than the limit
        assert client.until_end(1)[0] == solo_tokens(message)
        assert core.executor_pid == executor


def test_request_is_late_in_time_though_the_executor_hangs(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, stall_limit=20.0) as (_, client):
        client.greet()
        client.send(msgspec.structs.replace(request(1, HANGS_ONCE), timeout_s=0.05))
        client.send(request(2, 5))
        tokens, end = client.until_end(1)
        assert tokens == []
        assert end.error is not None
        assert end.error.kind == "DeadlineExceeded"
        client.send(CallUtility(call_id=1, method="block_tables"))
        while not isinstance(message := client.receive(), UtilityResult):
            pass
        assert {table["request_id"] for table in message.result} == {2}


def test_executor_that_dies_idle_is_replaced_and_all_clients_hear_of_it(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        os.kill(core.executor_pid, signal.SIGKILL)
        assert until_serving(client, False).num_executor_restarts == 1
        late = Client(core)
        late.greet()
        assert until_serving(client, True).num_executor_restarts == 1
        late.send(request(1, 5, 6))
        assert late.until_end(1)[1].error is None
        late.close()
        assert {path.name for path in core.runtime_dir.path.iterdir()} == {"core.sock", "executor-1-2-0.sock"}


def test_clients_are_pinged_while_an_executor_loads(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, seed=HANGS_LATER, stall_limit=1.5) as (core, client):
        client.greet()
        client.send(request(1, 5, 6, max_tokens=190))
        while not isinstance(message := client.receive(), StepOutputs) or not message.deltas:
            pass
        os.kill(core.executor_pid, signal.SIGKILL)
        until_serving(client, False)
        assert isinstance(client.receive(), Ping)
        assert isinstance(client.receive(), Ping)
        assert until_serving(client, True).num_executor_restarts == 2, "the one that hung was replaced too"
        assert client.until_end(1)[1].error is None


def test_requests_that_end_executors_do_not_add_up(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, max_restarts=4) as (_, client):
        client.greet()
        client.send(request(1, EXITS))
        client.send(request(2, EXITS))
        for request_id in (1, 2):
            _, end = client.until_end(request_id)
            assert end.error is not None
            assert end.error.kind == "PoisonRequest"
        client.send(request(3, 5, 6))
        assert client.until_end(3)[1].error is None


def test_answers_that_make_no_sense_are_no_progress(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, max_restarts=2) as (core, client):
        client.greet()
        client.send(request(1, CONFUSED))
        _, end = client.until_end(1)
        assert end.error is not None
        assert "--max-restarts 2" in end.error.message
        assert core.join() == 1


def test_restart_budget_ends_with_the_cause_for_everybody(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, max_restarts=1) as (core, client):
        client.greet()
        client.send(request(1, EXITS))
        _, end = client.until_end(1)
        assert end.error is not None
        assert "--max-restarts 1" in end.error.message
        assert "exit code 3" in end.error.message
        assert core.join() == 1
        while not isinstance(message := client.receive(), Goodbye):
            pass
        assert message.error == end.error
