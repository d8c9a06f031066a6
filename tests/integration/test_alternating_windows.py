"""A model whose layers alternate between a window and full attention, under the scheduler.

One block table serves both kinds: blocks that the windows have passed stay, as the full layers read them on.
"""

from __future__ import annotations

from typing import Any

import pytest

from pagewire.ipc.requests import AddRequest, GenerateTask, TokenInputs
from pagewire.ipc.sampling_params import Sampling
from tests.support.model_driver import Answer, ModelDriver, answers, build_model_driver
from tests.support.runner import BLOCK_SIZE
from tests.support.tiny_model import tiny_checkpoint

WINDOW = 6
PROMPT = list(range(5, 30))
NUM_TOKENS = 16
FAMILIES = [
    ("gemma2", {"attention_soft_cap": 1.5, "logit_soft_cap": 2.0}),
    ("gemma3", {"sliding_window_pattern": 2, "rope_theta": 1e6}),
]


def build(family: Any, options: dict[str, Any], **engine_options: Any) -> ModelDriver:
    checkpoint = tiny_checkpoint(family, sliding_window=WINDOW, num_layers=4, **options)
    return build_model_driver(checkpoint=checkpoint, **engine_options)


def request(request_id: int, tail: list[int]) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        inputs=TokenInputs(prompt_token_ids=[*PROMPT, *tail]),
        task=GenerateTask(sampling=Sampling(temperature=0.0, num_logprobs=1), max_tokens=NUM_TOKENS),
    )


def answer_alone(family: Any, options: dict[str, Any], message: AddRequest) -> Answer:
    driver = build(family, options, caching=False)
    driver.add(message)
    driver.run()
    (result,) = answers(driver[message.request_id])
    return result


@pytest.mark.parametrize(("family", "options"), FAMILIES)
def test_blocks_that_windows_have_passed_are_kept(family: Any, options: dict[str, Any]) -> None:
    driver = build(family, options)
    driver.add(request(1, []))
    driver.step()
    for num_output in range(1, NUM_TOKENS):
        (table,) = driver.block_tables()
        num_written = len(PROMPT) + num_output - 1
        block_ids = table["block_table"]
        assert isinstance(block_ids, list)
        assert len(block_ids) >= -(-num_written // BLOCK_SIZE)
        driver.step()
    assert len(answers(driver[1])[0][0]) == NUM_TOKENS


@pytest.mark.parametrize(("family", "options"), FAMILIES)
def test_prefix_beyond_every_window_is_reused_with_the_same_bits(family: Any, options: dict[str, Any]) -> None:
    driver = build(family, options)
    for message in (request(1, [40]), request(2, [41, 42])):
        driver.add(message)
        driver.run()
        assert answers(driver[message.request_id]) == [answer_alone(family, options, message)]
    start = driver[2].start
    assert start is not None
    assert start.num_cached_tokens == len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.parametrize(("family", "options"), FAMILIES)
def test_answers_are_the_same_bits_in_a_pool_too_small_for_all(family: Any, options: dict[str, Any]) -> None:
    messages = [request(1, [40]), request(2, [41, 42]), request(3, [])]
    driver = build(family, options, num_blocks=15, budget=7, caching=False)
    driver.add(*messages)
    driver.run()
    assert driver.engine.stats.num_preemptions > 0
    for message in messages:
        assert answers(driver[message.request_id]) == [answer_alone(family, options, message)]
