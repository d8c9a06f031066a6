"""Prompts in chunks, from the cache, and computed again: a real (tiny) model says what it says of them in one piece.

All memory that torch hands out unwritten is NaN here, and so is the whole KV pool.
"""

from __future__ import annotations

import math

import pytest
import torch

from pagewire.ipc.requests import AddRequest, GenerateTask, TokenInputs
from pagewire.ipc.sampling_params import Sampling
from tests.support.model_driver import answers, build_model_driver
from tests.support.runner import BLOCK_SIZE

GREEDY = Sampling(temperature=0.0, num_logprobs=2)


@pytest.fixture(autouse=True)
def _poisoned_memory():
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(1).isnan()
    yield
    torch.use_deterministic_algorithms(False)


def prompt_of(length, first=5):
    return [first + 7 * i % 90 for i in range(length)]


def request(request_id, prompt, sampling=GREEDY, *, max_tokens=4, **options):
    return AddRequest(
        request_id=request_id,
        inputs=TokenInputs(prompt_token_ids=prompt),
        task=GenerateTask(sampling=sampling, max_tokens=max_tokens),
        **options,
    )


def answer(driver, *requests):
    """Run the requests together; return what each one got."""
    driver.add(*requests)
    driver.run()
    return [answers(driver[message.request_id])[0] for message in requests]


def alone(message, **options):
    """What a request gets with nobody else there, its prompt in one piece."""
    (result,) = answer(build_model_driver(caching=False, **options), message)
    assert all(math.isfinite(entry.logprob) for entries in result[1:] for entry in entries)
    return result


@pytest.mark.parametrize("length", [BLOCK_SIZE, 2 * BLOCK_SIZE, 3 * BLOCK_SIZE, 35])
def test_every_budget_gives_the_answer_of_the_whole_prompt(length):
    message = request(1, prompt_of(length))
    expected = alone(message)
    for budget in (1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 7, 2 * BLOCK_SIZE, 16):
        assert answer(build_model_driver(budget=budget), message) == [expected], f"budget {budget}"


@pytest.mark.parametrize("length", [BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE, 3 * BLOCK_SIZE])
def test_prompt_that_is_cached_gives_the_answer_of_the_cold_one(length):
    prompt = prompt_of(length)
    driver = build_model_driver()
    for request_id in (1, 2):
        assert answer(driver, request(request_id, prompt)) == [alone(request(1, prompt))]
    assert driver[2].start.num_cached_tokens == (length - 1) // BLOCK_SIZE * BLOCK_SIZE
    if length > BLOCK_SIZE:
        shorter = prompt[: length // BLOCK_SIZE * BLOCK_SIZE - 1]
        assert answer(driver, request(3, shorter)) == [alone(request(1, shorter))]
        assert driver[3].start.num_cached_tokens <= len(shorter) - 1


@pytest.mark.parametrize("asked", [0, 1])
def test_prompt_logprobs_are_the_same_cold_and_warm_and_in_any_order(asked):
    prompts = [prompt_of(33), prompt_of(33)[:20], prompt_of(33, first=9), prompt_of(17)]
    sampling = Sampling(temperature=0.0, num_prompt_logprobs=asked)
    expected = [alone(request(1, prompt, sampling)) for prompt in prompts]
    assert [len(logprobs) for _, _, logprobs in expected] == [32, 19, 32, 16]
    driver = build_model_driver()
    num_sent = 0
    for order in ([0], [0], [3, 2, 1, 0], [0, 1, 2, 3]):
        messages = [request(num_sent + i, prompts[index], sampling) for i, index in enumerate(order)]
        num_sent += len(order)
        assert answer(driver, *messages) == [expected[index] for index in order]
        assert all(driver[message.request_id].start.num_cached_tokens == 0 for message in messages)


def test_prompt_logprobs_of_a_prefill_that_was_preempted_are_whole():
    asked = Sampling(temperature=0.0, num_prompt_logprobs=1)
    messages = [request(1, prompt_of(7), max_tokens=12), request(2, prompt_of(40, first=6), asked, max_tokens=2)]
    expected = [alone(message) for message in messages]
    driver = build_model_driver(num_blocks=12, budget=8, caching=False)
    assert answer(driver, *messages) == expected
    assert driver[2].end.num_preemptions > 0
    assert len(driver[2].start.prompt_logprobs) == 39


@pytest.mark.parametrize("is_async", [False, True])
def test_preempted_requests_keep_their_seeds_penalties_and_min_tokens(is_async):
    # 60 tokens a request, a pool for 1.5 of them, four at once.
    options = [
        {"temperature": 0.0, "repetition_penalty": 1.5, "presence_penalty": 0.5},
        {"temperature": 0.0, "frequency_penalty": 1.0, "min_tokens": 35, "end_token_ids": list(range(3, 128))},
        {"temperature": 1.0, "seed": 3, "frequency_penalty": 0.7},
        {"temperature": 0.8, "seed": -3, "repetition_penalty": 1.2, "min_tokens": 30, "end_token_ids": [5, 6, 7]},
    ]
    messages = [
        request(index, prompt_of(20, first=5 + index), Sampling(num_logprobs=1, **each), max_tokens=40)
        for index, each in enumerate(options)
    ]
    expected = [alone(message, max_model_len=64) for message in messages]
    driver = build_model_driver(num_blocks=23, max_model_len=64, is_async=is_async)
    assert answer(driver, *messages) == expected
    assert driver.engine.stats.num_preemptions > 0
