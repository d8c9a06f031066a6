"""A core that is paused or put to sleep: its executors' processes end and come again, and no token is lost."""

from __future__ import annotations

import os
import signal

import pytest

from pagewire.ipc.outputs import FinishReason, StepOutputs, UtilityResult
from pagewire.ipc.requests import CallUtility
from tests.support.children import is_alive
from tests.support.running_core import Client, request, running_core, solo_tokens

MANY = 150


class Told:
    """What a client hears: tokens and ends by request, and the answers to its calls."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.tokens: dict[int, list[int]] = {}
        self.reasons: dict[int, FinishReason] = {}
        self.accepted: set[int] = set()
        self.ended: set[int] = set()
        self.answers: dict[int, UtilityResult] = {}
        self.sleep_level = 0
        self._num_calls = 0

    def hear(self) -> None:
        message = self.client.receive()
        if isinstance(message, UtilityResult):
            self.answers[message.call_id] = message
        if not isinstance(message, StepOutputs):
            return
        self.accepted.update(message.accepted)
        for delta in message.deltas:
            self.tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
            if delta.finish_reason is not None:
                self.reasons[delta.request_id] = delta.finish_reason
        self.ended.update(end.request_id for end in message.ends if end.error is None)
        if message.stats is not None:
            self.sleep_level = message.stats.sleep_level
            assert message.stats.is_serving or not self.sleep_level, "asleep is healthy"

    def begin(self, *args: int | str | bool, method: str) -> int:
        self._num_calls += 1
        self.client.send(CallUtility(call_id=self._num_calls, method=method, args=list(args)))
        return self._num_calls

    def call(self, method: str, *args: int | str | bool) -> UtilityResult:
        call_id = self.begin(*args, method=method)
        while call_id not in self.answers:
            self.hear()
        return self.answers[call_id]

    def until_ended(self, *request_ids: int) -> None:
        while not self.ended.issuperset(request_ids):
            self.hear()

    def until_tokens_of(self, request_id: int) -> None:
        while not self.tokens.get(request_id):
            self.hear()


@pytest.mark.parametrize(("level", "tp"), [(1, 1), (2, 2)])
def test_what_is_kept_goes_on_after_the_sleep_where_it_was(monkeypatch: pytest.MonkeyPatch, level: int, tp: int):
    with running_core(monkeypatch, tp=tp) as (core, client):
        client.greet()
        told = Told(client)
        kept, late = request(1, 5, 6, 7, max_tokens=MANY), request(2, 8, 9)
        client.send(kept)
        told.until_tokens_of(1)
        pids = core.executor_pids
        assert told.call("sleep", level, "keep").result is True
        assert not any(map(is_alive, pids))
        assert told.sleep_level == level
        assert told.call("is_sleeping").result is True
        client.send(late)
        while 2 not in told.accepted:
            told.hear()
        assert told.call("wake_up").result is True
        assert told.sleep_level == 0
        told.until_ended(1, 2)
        assert (told.tokens[1], told.tokens[2]) == (solo_tokens(kept), solo_tokens(late))
        assert set(core.executor_pids).isdisjoint(pids)
        assert core.stop() == 0


def test_modes_end_requests_or_wait_for_them(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        told = Told(client)
        waited = request(1, 5, 6, 7, max_tokens=MANY)
        client.send(waited)
        told.until_tokens_of(1)
        assert told.call("sleep", 1, "wait").result is True
        assert told.tokens[1] == solo_tokens(waited)
        assert told.call("sleep", 1, "wait").error is not None
        assert told.call("wake_up").result is True
        client.send(request(2, 5, 6, 8, max_tokens=MANY))
        told.until_tokens_of(2)
        assert told.call("sleep", 1, "abort").result is True
        assert told.reasons[2] is FinishReason.ABORT
        assert 2 in told.ended
        assert core.stop() == 0


def test_a_pause_holds_everything_and_executors_stay(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        told = Told(client)
        kept = request(1, 5, 6, 7, max_tokens=MANY)
        client.send(kept)
        told.until_tokens_of(1)
        pid = core.executor_pid
        assert told.call("pause", "keep", True).result is True
        num_tokens = len(told.tokens[1])
        assert told.call("is_paused").result is True
        assert len(told.tokens[1]) == num_tokens
        assert told.call("resume").result is True
        told.until_ended(1)
        assert told.tokens[1] == solo_tokens(kept)
        assert core.executor_pid == pid


def test_an_executor_that_hangs_is_killed_when_it_is_to_sleep(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        told = Told(client)
        pid = core.executor_pid
        os.kill(pid, signal.SIGSTOP)
        assert told.call("sleep").result is True
        assert not is_alive(pid)


def test_who_is_woken_before_it_slept_is_told_so(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        told = Told(client)
        os.kill(core.executor_pid, signal.SIGSTOP)
        sleep = told.begin(method="sleep")
        assert told.call("wake_up").result is True
        error = told.answers[sleep].error
        assert error is not None
        assert "overtaken" in error.message
        client.send(request(1, 5, 6))
        told.until_ended(1)


def test_nonsense_is_refused_by_what_is_taken(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (_core, client):
        client.greet()
        told = Told(client)
        for method, args in (("sleep", [3]), ("sleep", [1, "hard"]), ("pause", ["keep", 7]), ("wake_up", [1])):
            error = told.call(method, *args).error
            assert error is not None
            assert error.kind == "InvalidRequest"
        assert told.call("resume").result is True
