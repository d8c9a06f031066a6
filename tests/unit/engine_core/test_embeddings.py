"""Requests that are embedded share steps, blocks and accidents with all others, and draw nothing."""

from __future__ import annotations

import pytest

from tests.support.builders import build_driver, build_embedding, build_request
from tests.support.fake_executor import FakeExecutor

PROMPT = list(range(10, 30))


def test_an_embedding_is_told_once_with_its_end_and_no_token():
    driver = build_driver()
    driver.add(build_embedding(1, PROMPT), build_request(2, PROMPT[:7]))
    driver.run()
    told = driver[1]
    assert told.embedding is not None
    assert told.start is None
    assert told.end is not None
    assert told.end.error is None
    assert driver.engine.stats.num_prompt_tokens == 27
    driver.check_complete(2)


def test_it_shares_a_step_with_requests_for_tokens():
    driver = build_driver()
    driver.add(build_request(1, PROMPT[:5]), build_embedding(2, PROMPT), build_embedding(3, PROMPT[:9], pooling="mean"))
    step = driver.step()
    assert [row.num_draws for row in step.rows] == [1, 0, 0]
    assert [row.pooling for row in step.new_rows] == ["", "last", "mean"]


@pytest.mark.parametrize(("pooling", "num_cached"), [("last", 16), ("mean", 0)])
def test_the_last_token_needs_itself_alone_and_a_mean_all_of_them(pooling, num_cached):
    driver = build_driver(block_size=4)
    driver.add(build_request(1, PROMPT))
    driver.run()
    driver.add(build_embedding(2, PROMPT, pooling=pooling))
    driver.run()
    assert driver[2].embedding is not None
    assert driver[2].embedding.num_cached_tokens == num_cached


def test_what_it_computes_is_found_by_others():
    driver = build_driver(block_size=4)
    driver.add(build_embedding(1, PROMPT, pooling="mean"))
    driver.run()
    driver.add(build_request(2, PROMPT))
    driver.run()
    assert driver[2].start is not None
    assert driver[2].start.num_cached_tokens == 16


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_long_prompt_is_computed_in_chunks(pooling):
    driver = build_driver(budget=6)
    driver.add(build_embedding(1, PROMPT, pooling=pooling))
    driver.run()
    assert [step.rows[0].num_scheduled_tokens for step in driver.steps] == [6, 6, 6, 2]


def test_it_may_fill_the_whole_context():
    driver = build_driver(max_model_len=16)
    driver.add(build_embedding(1, PROMPT[:16]), build_embedding(2, PROMPT[:17]))
    driver.run()
    assert driver[1].embedding is not None
    assert driver[2].end is not None
    assert driver[2].end.is_refused
    assert driver[2].end.error is not None
    assert driver[2].end.error.kind == "ContextTooLong"


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_an_executor_that_is_lost_amid_a_prompt_costs_nothing_but_time(pooling):
    driver = build_driver(budget=6)
    driver.add(build_embedding(1, PROMPT, pooling=pooling))
    driver.step()
    driver.send()
    driver.restart_executor(FakeExecutor(num_blocks=64, block_size=4, vocab_size=1000), 2)
    driver.run()
    assert driver[1].embedding is not None
