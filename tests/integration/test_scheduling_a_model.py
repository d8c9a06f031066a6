"""The scheduler over a real (tiny) model: how requests are packed into steps and blocks never shows in an answer."""

from __future__ import annotations

import math

import pytest

from pagewire.ipc.requests import AddRequest, GenerateTask, TokenInputs
from pagewire.ipc.sampling_params import Sampling
from tests.support.model_driver import answers, build_model_driver

HEAD = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]


def build_requests():
    greedy = Sampling(temperature=0.0, num_logprobs=2)
    prompts = {
        1: (HEAD, greedy, 1),
        2: ([*HEAD, 40, 41], Sampling(temperature=1.0, seed=7, num_logprobs=2), 3),
        3: ([*HEAD[:8], 50], Sampling(temperature=1.0, seed=8, num_logprobs=0, repetition_penalty=1.3), 2),
        4: ([60, 61, 62], Sampling(temperature=0.0, num_logprobs=1, num_prompt_logprobs=1), 1),
        5: (HEAD[:4], Sampling(temperature=0.9, seed=-3, top_p=0.9, num_logprobs=1), 1),
    }
    return [
        AddRequest(
            request_id=request_id,
            inputs=TokenInputs(prompt_token_ids=prompt),
            task=GenerateTask(sampling=sampling, n=n, max_tokens=16),
        )
        for request_id, (prompt, sampling, n) in prompts.items()
    ]


@pytest.fixture(scope="module")
def alone():
    """Each request's answers with nobody else in the engine, its prompt in one piece."""
    result = {}
    for request in build_requests():
        driver = build_model_driver(caching=False)
        driver.add(request)
        driver.run()
        result[request.request_id] = answers(driver[request.request_id])
    return result


def test_answers_are_finite(alone):
    for children in alone.values():
        for token_ids, logprobs, _ in children:
            assert len(token_ids) == 16
            assert all(math.isfinite(entry.logprob) for entry in logprobs)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("one batch", {}),
        ("small budget", {"budget": 5}),
        ("no prefix cache", {"caching": False}),
        ("small pool", {"num_blocks": 12}),
        ("small pool and budget, no prefix cache", {"num_blocks": 12, "budget": 7, "caching": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_answers_are_the_same_bits_however_requests_are_packed(alone, name, options, is_async):
    driver = build_model_driver(is_async=is_async, **options)
    driver.add(*build_requests())
    driver.run()
    if "pool" in name:
        assert driver.engine.stats.num_preemptions > 0
    for request_id, expected in alone.items():
        assert answers(driver[request_id]) == expected, f"request {request_id}"
