"""Malformed requests and frames against real processes."""

from __future__ import annotations

import pytest

from tests.support.running_server import RunningServer
from tools.fuzz_http import Attack
from tools.fuzz_zmq import attack, tiny_engine

pytestmark = pytest.mark.slow


def test_malformed_requests_are_refused_and_the_server_serves_on(tiny: RunningServer) -> None:
    before = tiny.descendants()
    findings = Attack(tiny.url).run(300, 2)
    assert findings.count >= 300
    assert set(findings.statuses) - {200} <= {400, 404, 405, 408, 413, 415, 417, 431}
    # None was lost; the helper that compiles grammars starts with the first one that is asked for.
    assert set(before) <= set(tiny.descendants())
    assert len(tiny.descendants()) <= len(before) + 1
    assert tiny.post("/v1/completions", {"prompt": [5, 6], "max_tokens": 2, "temperature": 0})["choices"]


def test_random_frames_are_refused_and_other_clients_are_not_disturbed() -> None:
    with tiny_engine() as address:
        attacker = attack(address, 500, 1)
    assert attacker.num_sent >= 500
    assert attacker.answers["Goodbye"] > 100
    assert attacker.answers["refused request"] > 10
