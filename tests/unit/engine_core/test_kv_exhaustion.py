"""Pools that are too small for what is asked at once: everything finishes, with the tokens that it gets alone."""

from __future__ import annotations

import pytest

from pagewire.engine_core.kv.sizing import fit_max_model_len
from tests.support.builders import build_driver, build_request


def test_request_beyond_the_pool_is_refused_and_the_one_behind_it_completes():
    max_model_len = fit_max_model_len(None, 256, num_blocks=4, block_size=16)
    driver = build_driver(num_blocks=4, block_size=16, max_model_len=max_model_len, budget=512)
    driver.add(build_request(1, range(100)), build_request(2, range(5)))
    driver.run()
    assert driver[1].end.is_refused
    assert driver[1].end.error.kind == "ContextTooLong"
    driver.check_complete(2)


def test_prompt_that_fits_with_more_output_than_fits_ends_by_length():
    max_model_len = fit_max_model_len(None, 256, num_blocks=4, block_size=16)
    driver = build_driver(num_blocks=4, block_size=16, max_model_len=max_model_len)
    driver.add(build_request(1, range(40), max_tokens=200))
    driver.run()
    driver.check_complete(1)
    assert len(driver[1].children[0].token_ids) == 48 - 40


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_preempted_request_resumes_with_same_tokens(is_async, caching, policy):
    # 60 tokens a request, a pool for 1.5 of them, four at once.
    driver = build_driver(
        num_blocks=23, block_size=4, max_model_len=64, is_async=is_async, caching=caching, policy=policy, budget=16
    )
    driver.add(*(build_request(i, [i] * 20, max_tokens=40, seed=i, min_tokens=35, eos=[1]) for i in range(4)))
    driver.run()
    assert driver.engine.stats.num_preemptions > 0
    for request_id in range(4):
        driver.check_complete(request_id)
        assert driver[request_id].end.num_preemptions <= driver.engine.stats.num_preemptions


def test_resumed_row_tells_prompt_and_output_apart():
    driver = build_driver(num_blocks=8, block_size=4, max_model_len=28, caching=False)
    driver.add(*(build_request(i, [i] * 9, max_tokens=12) for i in range(3)))
    driver.run()
    resumed = [row for step in driver.steps for row in step.new_rows if len(row.token_ids) > 9]
    assert resumed
    assert all(row.num_prompt_tokens == 9 for row in resumed)
    assert all(row.num_computed_tokens == 0 for row in resumed)


def test_prompt_logprobs_survive_a_preemption_amid_the_prefill():
    driver = build_driver(num_blocks=11, block_size=4, max_model_len=40, budget=8, caching=False)
    driver.add(build_request(1, [1] * 7, max_tokens=12), build_request(2, range(36), prompt_logprobs=1, max_tokens=2))
    driver.run()
    assert driver[2].end.num_preemptions > 0
    first_draw = next(s for s, step in enumerate(driver.steps) if any(r.num_draws and r.row_id != 1 for r in step.rows))
    assert sum(len(step.new_rows) for step in driver.steps[: first_draw + 1]) > 2, "it was preempted before its end"
    assert [entry.token_id for entry in driver[2].start.prompt_logprobs] == list(range(1, 36))
    driver.check_complete(2)


def test_high_priority_head_that_needs_held_blocks_does_not_stall_the_engine():
    driver = build_driver(num_blocks=9, block_size=4, max_model_len=32, policy="priority", caching=False)
    driver.add(build_request(1, [1] * 16, priority=5, max_tokens=10))
    driver.step()
    driver.add(build_request(2, [2] * 30, priority=-5, max_tokens=2))
    driver.run()  # a stall fails there
    driver.check_complete(1)
    driver.check_complete(2)


def test_children_that_fit_one_by_one_only_take_turns():
    driver = build_driver(num_blocks=5, block_size=4, max_model_len=16, caching=False)
    driver.add(build_request(1, [1] * 6, n=4, max_tokens=10))
    driver.run()
    assert driver[1].end.num_preemptions > 0
    driver.check_complete(1)


def test_request_that_can_never_run_fails_instead_of_stalling():
    # A max_model_len that was not fitted to the pool: the one way to get here.
    driver = build_driver(num_blocks=2, block_size=4, max_model_len=64)
    driver.add(build_request(1, range(20)), build_request(2, range(3), max_tokens=2))
    driver.run()
    assert driver[1].end.error.kind == "EngineError"
    assert "needs 5 KV blocks" in driver[1].end.error.message
    driver.check_complete(2)
