"""The scheduler over a model whose steps are launched ahead: nothing of it shows in an answer."""

from __future__ import annotations

import pytest

from pagewire.ipc.requests import AddRequest, GenerateTask, TokenInputs
from pagewire.ipc.sampling_params import Sampling
from tests.support.launching_ahead import build_ahead_driver
from tests.support.model_driver import answers, build_model_driver

HEAD = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
NUM_TOKENS = 12


def build_requests():
    prompts = {
        1: (HEAD, Sampling(temperature=0.0, num_logprobs=2), 1),
        2: ([*HEAD, 40, 41], Sampling(temperature=1.0, seed=7, num_logprobs=2), 3),
        3: ([*HEAD[:8], 50], Sampling(temperature=1.0, seed=8, num_logprobs=0, repetition_penalty=1.3), 2),
        4: ([60, 61, 62], Sampling(temperature=0.0, num_logprobs=1, num_prompt_logprobs=1), 1),
        5: (HEAD[:4], Sampling(temperature=0.9, seed=-3, bad_words_token_ids=[[9], [3, 4]], num_logprobs=1), 1),
    }
    return [
        AddRequest(
            request_id=request_id,
            inputs=TokenInputs(prompt_token_ids=prompt),
            task=GenerateTask(sampling=sampling, n=n, max_tokens=NUM_TOKENS),
        )
        for request_id, (prompt, sampling, n) in prompts.items()
    ]


@pytest.fixture(scope="module")
def waited_for():
    """The answers of a runner that is done with each step before the next comes."""
    driver = build_model_driver(is_async=False)
    driver.add(*build_requests())
    driver.run()
    return {request_id: answers(driver[request_id]) for request_id in range(1, 6)}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="one batch"),
        pytest.param({"budget": 5}, id="small budget"),
        pytest.param({"num_blocks": 12, "budget": 7, "caching": False}, id="small pool and budget, no prefix cache"),
    ],
)
def test_answers_are_the_same_bits_with_a_step_in_flight(waited_for, options):
    driver = build_ahead_driver(**options)
    driver.add(*build_requests())
    driver.run()
    assert (driver.engine.stats.num_preemptions > 0) == ("num_blocks" in options)
    for request_id, expected in waited_for.items():
        assert answers(driver[request_id]) == expected, f"request {request_id}"


def test_aborted_request_leaves_the_others_alone(waited_for):
    driver = build_ahead_driver()
    driver.add(*build_requests())
    for _ in range(4):
        while driver.send() is not None:
            pass
        driver.receive()
    driver.abort(1)  # it is in a step in flight; the next one removes its rows and gives their places away
    newcomer = AddRequest(
        request_id=9,
        inputs=TokenInputs(prompt_token_ids=[*HEAD, 40, 41]),
        task=GenerateTask(sampling=Sampling(temperature=1.0, seed=7, num_logprobs=2), n=3, max_tokens=NUM_TOKENS),
    )
    driver.add(newcomer)
    driver.run()
    for request_id in (2, 3, 4, 5):
        assert answers(driver[request_id]) == waited_for[request_id], f"request {request_id}"
    assert answers(driver[9]) == waited_for[2]
