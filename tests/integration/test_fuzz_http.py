"""Malformed requests, made from the server's own description, against the HTTP frontend over a scripted core."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.http_server import running_server
from tools.fuzz_http import Attack, Findings, RawRequest


async def attack(count: int, seed: int) -> Findings:
    async with running_server("hello") as server:
        findings = await asyncio.to_thread(lambda: Attack(server.url).run(count, seed))
        assert (await server.complete())["choices"][0]["text"] == "hello"
        assert not server.core.running
        return findings


async def test_no_malformed_request_is_answered_by_a_5xx_or_breaks_the_shape_of_errors():
    findings = await attack(count=300, seed=1)
    assert findings.count >= 300
    assert findings.statuses[400] > findings.count / 4
    assert findings.slowest_refusal_s < 5  # a second is the bar, on a machine with nothing else to do


async def test_an_answer_that_breaks_a_rule_would_be_noticed():
    async with running_server("hello") as server:
        attack = await asyncio.to_thread(Attack, server.url)
        attack.document["paths"]["/tokenize"]["post"]["responses"].pop("400")
        wrong = RawRequest("POST", "/tokenize", {"Content-Type": "application/json"}, b"[")
        with pytest.raises(AssertionError, match="no 400 for /tokenize"):
            await asyncio.to_thread(attack.send, wrong)
        attack.close()
