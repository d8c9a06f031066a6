"""A request that its client adds to a new core goes on where that client saw it last."""

from __future__ import annotations

import pytest

from pagewire.ipc.outputs import FinishReason
from tests.support.builders import build_driver, build_request


def run_until(driver, request_id, num_tokens):
    while len(driver[request_id].children[-1].token_ids) < num_tokens:
        driver.step()


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("num_tokens", [0, 1, 3])
def test_stream_goes_on_with_the_tokens_that_it_would_have_had(num_tokens, is_async, caching):
    driver = build_driver(is_async=is_async, caching=caching)
    driver.add(build_request(1, range(7), max_tokens=9, logprobs=1))
    driver.add(build_request(2, range(7), n=3, seed=4, max_tokens=8))
    run_until(driver, 2, num_tokens)
    driver.restart_core(build_driver(is_async=is_async, caching=caching))
    driver.run()
    driver.check_complete(1)
    driver.check_complete(2)


def test_tokens_that_were_never_told_are_drawn_again():
    driver = build_driver()
    driver.add(build_request(1, range(7), max_tokens=9))
    run_until(driver, 1, 2)
    driver.send()
    driver.engine.apply(driver.results.popleft(), driver.now)
    driver.restart_core(build_driver())
    driver.run()
    driver.check_complete(1)


def test_only_unfinished_children_go_on():
    driver = build_driver()
    driver.add(build_request(1, range(5), n=3, max_tokens=6))
    run_until(driver, 1, 2)
    driver.abort(children=[(1, 1)])
    driver.restart_core(build_driver())
    assert [table["child"] for table in driver.block_tables()] == [0, 2]
    driver.abort(children=[(1, 1)])
    driver.run()
    first, stopped, last = driver[1].children
    assert (len(first.token_ids), len(last.token_ids)) == (6, 6)
    assert (len(stopped.token_ids), stopped.finish_reason) == (2, FinishReason.STOP)


def test_resumed_child_may_be_stopped():
    driver = build_driver()
    driver.add(build_request(1, range(5), n=2, max_tokens=6))
    run_until(driver, 1, 2)
    driver.restart_core(build_driver())
    driver.abort(children=[(1, 1)])
    driver.run()
    assert driver[1].children[0].finish_reason is FinishReason.LENGTH
    assert driver[1].children[1].finish_reason is FinishReason.STOP
    assert driver[1].end.error is None


def test_prompt_logprobs_are_told_once_and_not_computed_again():
    driver = build_driver(budget=4)
    driver.add(build_request(1, range(10), max_tokens=6, prompt_logprobs=1))
    run_until(driver, 1, 1)
    driver.restart_core(build_driver(budget=64))
    step = driver.step()
    assert step.new_rows[0].sampling.num_prompt_logprobs is None
    driver.run()
    driver.check_complete(1)


def test_prompt_logprobs_begin_anew_if_their_prefill_was_not_complete():
    driver = build_driver(budget=4)
    driver.add(build_request(1, range(10), max_tokens=6, prompt_logprobs=1))
    driver.step()
    driver.restart_core(build_driver(budget=4))
    driver.run()
    driver.check_complete(1)


def test_preempted_request_computes_no_prompt_logprobs_again():
    driver = build_driver(num_blocks=6, block_size=2, max_model_len=10)
    requests = (build_request(i, [i] * 4, max_tokens=6, prompt_logprobs=1) for i in (1, 2))
    driver.add(*requests)
    driver.run()
    assert driver.engine.stats.num_preemptions
    resumed = [row for step in driver.steps for row in step.new_rows if len(row.token_ids) > row.num_prompt_tokens]
    assert resumed
    assert all(row.sampling.num_prompt_logprobs is None for row in resumed)


def test_children_of_a_resumed_request_share_what_they_have_in_common():
    driver = build_driver(block_size=4)
    driver.add(build_request(1, range(16), n=3, max_tokens=6))
    run_until(driver, 1, 2)
    driver.restart_core(build_driver(block_size=4))
    driver.step()
    assert driver.engine.stats.num_used_blocks == 4 + 3
    driver.run()
    driver.check_complete(1)


def test_resumed_request_comes_before_those_that_its_client_makes_later():
    driver = build_driver(max_num_seqs=1)
    driver.add(build_request(1, [1], max_tokens=6), build_request(2, [2]))
    run_until(driver, 1, 2)
    driver.restart_core(build_driver(max_num_seqs=1))
    driver.add(build_request(3, [3]))
    order = [driver.step().new_rows[0].token_ids[0]]
    while driver.engine.has_work():
        order += [row.token_ids[0] for row in driver.step().new_rows]
    assert order == [1, 2, 3]


def test_counters_do_not_count_a_resumed_prompt_as_new():
    driver = build_driver()
    driver.add(build_request(1, range(9), max_tokens=6))
    run_until(driver, 1, 2)
    driver.restart_core(build_driver())
    driver.run()
    stats = driver.engine.stats
    assert (stats.num_prompt_tokens, stats.num_generation_tokens) == (0, 4)
    assert (stats.prefix_cache_queries, stats.num_waiting_tokens) == (0, 0)
