"""A core over several ranks, each a process: one of them ends, and all are replaced while requests go on."""

from __future__ import annotations

import os
import signal

import pytest

from pagewire.ipc.outputs import RequestEnd, StepOutputs
from pagewire.ipc.requests import CallUtility
from tests.support.children import is_alive, wait_until
from tests.support.fake_executor_process import EXITS, TALKS_OUT_OF_TURN_ONCE
from tests.support.running_core import Client, request, running_core, solo_tokens, until_serving


def collect_until_ended(client: Client, num_requests: int) -> dict[int, list[int]]:
    """Tokens by request, once so many have ended without an error."""
    collected: dict[int, list[int]] = {}
    ends: list[RequestEnd] = []
    while len(ends) < num_requests:
        message = client.receive()
        if isinstance(message, StepOutputs):
            for delta in message.deltas:
                collected.setdefault(delta.request_id, []).extend(delta.token_ids)
            ends += message.ends
    assert not any(end.error for end in ends)
    return collected


@pytest.mark.parametrize("victim", [0, 3])
def test_four_ranks_are_replaced_as_one_is_killed_and_every_stream_goes_on(
    monkeypatch: pytest.MonkeyPatch, victim: int
):
    with running_core(monkeypatch, tp=2, pp=2) as (core, client):
        client.greet()
        first_ranks = core.executor_pids
        assert len(first_ranks) == 4
        messages = [request(i, 5, i, max_tokens=190) for i in range(1, 6)]
        for message in messages:
            client.send(message)
        while not isinstance(told := client.receive(), StepOutputs) or not told.deltas:
            pass
        os.kill(first_ranks[victim], signal.SIGKILL)
        assert until_serving(client, False).num_executor_restarts == 1
        collected = collect_until_ended(client, len(messages))
        for message in messages:  # some tokens were told before, and not looked at here
            tokens = collected[message.request_id]
            assert tokens == solo_tokens(message)[-len(tokens) :]
        assert not any(is_alive(pid) for pid in first_ranks)
        assert len(set(core.executor_pids) - set(first_ranks)) == 4
        client.send(CallUtility(call_id=1, method="check_invariants"))
        names = {path.name for path in core.runtime_dir.path.iterdir()}
        assert names == {"core.sock", *(f"executor-1-2-{rank}.sock" for rank in range(4))}
        pids = core.executor_pids
    assert not any(is_alive(pid) for pid in pids)


def test_stopped_rank_that_answers_nothing_is_replaced_with_the_others(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, pp=2, stall_limit=1.0) as (core, client):
        client.greet()
        os.kill(core.executor_pids[1], signal.SIGSTOP)
        message = request(1, 5, 6)
        client.send(message)
        assert client.until_end(1)[0] == solo_tokens(message)


def test_rank_that_answers_out_of_turn_is_not_listened_to(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, tp=2) as (core, client):
        client.greet()
        first_ranks = core.executor_pids
        message = request(1, TALKS_OUT_OF_TURN_ONCE, 6, max_tokens=9)
        client.send(message)
        assert client.until_end(1)[0] == solo_tokens(message)
        # It may talk when the other rank has answered all of the request.
        wait_until(lambda: not any(map(is_alive, first_ranks)), 20, "the end of the ranks")


def test_request_that_ends_a_rank_is_told_of_which(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, pp=2) as (_, client):
        client.greet()
        client.send(request(1, EXITS))
        _, end = client.until_end(1)
        assert end.error is not None
        assert "executor 1 ended with exit code 3" in end.error.message
        client.send(request(2, 7, 8))
        assert client.until_end(2)[1].error is None
