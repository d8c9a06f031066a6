"""A prompt's vector has the same bits whatever its chunks, its company, its cache and its accidents were."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pagewire.gpu_executor.models.base import Model
from pagewire.ipc.requests import AddRequest, GenerateTask, TokenInputs
from pagewire.ipc.sampling_params import Sampling
from tests.support.builders import build_embedding
from tests.support.launching_ahead import build_ahead_driver
from tests.support.model_driver import build_model_driver
from tests.support.runner import BLOCK_SIZE

LENGTHS = (1, BLOCK_SIZE, 7, 16, 35)


def prompt_of(length, first=5):
    return [first + 7 * i % 90 for i in range(length)]


def embeddings(pooling):
    return [
        build_embedding(index, prompt_of(length), pooling=pooling, normalize=False)
        for index, length in enumerate(LENGTHS, 1)
    ]


def vectors(driver, messages):
    driver.add(*messages)
    driver.run()
    return [driver[message.request_id].embedding.vector for message in messages]


@pytest.fixture(scope="module", params=["last", "mean"])
def pooling(request):
    return request.param


@pytest.fixture(scope="module")
def alone(pooling):
    """The vectors of prompts that are computed whole, one after the other."""
    return [vectors(build_model_driver(caching=False), [message])[0] for message in embeddings(pooling)]


def test_vectors_are_finite_and_differ(alone):
    numbers = [np.frombuffer(vector, dtype="<f4") for vector in alone]
    assert all(np.isfinite(each).all() for each in numbers)
    assert len(set(alone)) == len(LENGTHS)


@pytest.mark.parametrize("budget", [1, BLOCK_SIZE + 1, 16, 64])
def test_chunks_and_company_change_no_bit(pooling, alone, budget):
    assert vectors(build_model_driver(budget=budget), embeddings(pooling)) == alone


def test_cached_prefixes_change_no_bit(pooling, alone):
    driver = build_model_driver()
    assert vectors(driver, embeddings(pooling)) == alone
    again = [
        build_embedding(10 + index, prompt_of(length), pooling=pooling, normalize=False)
        for index, length in enumerate(LENGTHS)
    ]
    assert vectors(driver, again) == alone
    num_cached = driver[14].embedding.num_cached_tokens
    assert num_cached == (0 if pooling == "mean" else 32)


def test_requests_for_tokens_in_the_same_steps_change_no_bit_and_are_not_changed(pooling, alone):
    def generation():
        return AddRequest(
            request_id=9,
            inputs=TokenInputs(prompt_token_ids=prompt_of(9, first=8)),
            task=GenerateTask(sampling=Sampling(temperature=1.0, seed=4), max_tokens=20),
        )

    lonely = build_model_driver()
    lonely.add(generation())
    lonely.run()
    driver = build_model_driver(budget=9)
    driver.add(generation())
    assert vectors(driver, embeddings(pooling)) == alone
    assert driver[9].children[0].token_ids == lonely[9].children[0].token_ids


@pytest.mark.parametrize("budget", [5, 64])
def test_steps_that_are_launched_ahead_of_a_device_change_no_bit(pooling, alone, budget):
    assert vectors(build_ahead_driver(budget=budget), embeddings(pooling)) == alone


def test_a_prompt_that_was_preempted_is_summed_anew(pooling, alone):
    decode = AddRequest(
        request_id=20,
        inputs=TokenInputs(prompt_token_ids=prompt_of(7, first=8)),
        task=GenerateTask(sampling=Sampling(temperature=0.0), max_tokens=14),
    )
    driver = build_model_driver(num_blocks=12, budget=6, caching=False)
    driver.add(decode)
    driver.step()
    assert vectors(driver, embeddings(pooling)[-1:]) == alone[-1:]
    assert driver[5].end.num_preemptions > 0


def test_states_that_are_no_numbers_fail_their_own_request(monkeypatch, pooling):
    driver = build_model_driver()
    model: Model = driver.executor.model
    forward = model.forward

    def poisoned(*args, **kwargs):
        hidden = forward(*args, **kwargs)
        hidden[:4] = torch.nan
        return hidden

    monkeypatch.setattr(model, "forward", poisoned)
    driver.add(
        build_embedding(1, prompt_of(4), pooling=pooling), build_embedding(2, prompt_of(5, first=8), pooling=pooling)
    )
    driver.run()
    assert "no numbers" in driver[1].end.error.message
    assert driver[2].end.error is None
