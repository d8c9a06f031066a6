"""Blocks that requests share: prefix cache hits, forks, and what keeps requests apart."""

from __future__ import annotations

import pytest

from pagewire.ipc.requests import CallUtility
from tests.support.builders import build_driver, build_request
from tests.support.engine_driver import ALICE

BLOCK = 4
HEAD = list(range(100, 100 + 3 * BLOCK))


def ask(driver, method):
    return driver.engine.call_utility(ALICE, CallUtility(call_id=1, method=method)).result


def test_three_requests_sent_together_share_the_blocks_of_their_common_head():
    driver = build_driver(block_size=BLOCK)
    driver.add(*(build_request(i, [*HEAD, i, i]) for i in (1, 2, 3)))
    step = driver.step()
    tables = [table["block_table"] for table in ask(driver, "block_tables")]
    assert tables[0][:3] == tables[1][:3] == tables[2][:3]
    assert len({table[3] for table in tables}) == 3
    assert [table["ref_counts"] for table in ask(driver, "block_tables")] == [[3, 3, 3, 1]] * 3
    assert ask(driver, "pool")["num_used_blocks"] == 3 + 3
    assert [row.num_scheduled_tokens for row in step.rows] == [14, 2, 2], "the head is computed once"
    assert [driver[i].start.num_cached_tokens for i in (1, 2, 3)] == [0, 12, 12]
    driver.run()


def test_children_of_one_prompt_share_all_blocks_and_copy_the_last_one_on_write():
    driver = build_driver(block_size=BLOCK)
    driver.add(build_request(1, [*HEAD, 1, 2], n=3, max_tokens=8))
    prefill = driver.step()
    assert [row.num_draws for row in prefill.rows] == [3]
    assert sum(row.num_scheduled_tokens for row in prefill.rows) == 14
    assert [table["ref_counts"] for table in ask(driver, "block_tables")] == [[3, 3, 3, 3]] * 3
    assert ask(driver, "pool")["num_used_blocks"] == 4
    decode = driver.step()
    assert len(decode.block_copies) == 2, "the last sharer writes in place"
    assert [table["ref_counts"] for table in ask(driver, "block_tables")] == [[3, 3, 3, 1]] * 3
    assert ask(driver, "pool")["num_used_blocks"] == 3 + 3
    driver.run()
    driver.check_complete(1)


def test_fork_at_a_block_border_copies_nothing():
    driver = build_driver(block_size=BLOCK)
    driver.add(build_request(1, HEAD, n=3, max_tokens=4))
    driver.run()
    assert all(not step.block_copies for step in driver.steps)
    driver.check_complete(1)


def test_first_child_answers_as_the_request_without_siblings():
    driver = build_driver()
    driver.add(build_request(1, HEAD, n=3), build_request(2, HEAD))
    driver.run()
    assert driver[1].children[0].token_ids == driver[2].children[0].token_ids
    assert driver[1].children[0].token_ids != driver[1].children[1].token_ids


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK])
def test_prompt_that_is_cached_whole_still_computes_its_last_token(length):
    driver = build_driver(block_size=BLOCK)
    for request_id in (1, 2):
        driver.add(build_request(request_id, HEAD[:length]))
        driver.run()
        driver.check_complete(request_id)
    assert driver[2].start.num_cached_tokens == (length - 1) // BLOCK * BLOCK
    assert driver[1].children[0].token_ids == driver[2].children[0].token_ids


def test_strict_prefix_of_a_cached_prompt_is_cached_up_to_its_last_token():
    driver = build_driver(block_size=BLOCK)
    driver.add(build_request(1, HEAD))
    driver.run()
    driver.add(build_request(2, HEAD[: 2 * BLOCK]))
    driver.run()
    assert driver[2].start.num_cached_tokens == BLOCK
    driver.check_complete(2)


def test_output_of_a_finished_request_is_found_by_the_next_turn():
    driver = build_driver(block_size=BLOCK)
    driver.add(build_request(1, HEAD, max_tokens=9))
    driver.run()
    driver.add(build_request(2, [*HEAD, *driver[1].children[0].token_ids, 7, 7]))
    driver.run()
    assert driver[2].start.num_cached_tokens == 20, "of 21 tokens, the last was never computed"
    driver.check_complete(2)


def test_budget_is_charged_for_what_the_cache_did_not_give():
    driver = build_driver(block_size=16, num_blocks=64, max_model_len=600, budget=512)
    prompt = list(range(465))
    driver.add(build_request(1, prompt[:256]))
    driver.run()
    driver.add(build_request(2, [*prompt[:256], *range(500, 709)]), build_request(3, range(800, 900)))
    step = driver.step()
    assert [row.num_scheduled_tokens for row in step.rows] == [209, 100]
    assert driver[2].start.num_cached_tokens == 256
    driver.run()


def test_salts_keep_requests_apart():
    driver = build_driver(block_size=BLOCK)
    for request_id, salt in ((1, ""), (2, "a"), (3, "b"), (4, "a")):
        driver.add(build_request(request_id, [*HEAD, 1], salt=salt))
        driver.run()
    assert [driver[i].start.num_cached_tokens for i in (1, 2, 3, 4)] == [0, 0, 0, 12]
    assert len({tuple(driver[i].children[0].token_ids) for i in (1, 2, 3, 4)}) == 1


@pytest.mark.parametrize("asked", [0, 1])
def test_prompt_logprobs_skip_the_cache_and_are_the_same_cold_and_warm(asked):
    driver = build_driver(block_size=16, max_model_len=64)
    prompt = [*range(33)]
    driver.add(build_request(1, prompt, prompt_logprobs=asked))
    driver.run()
    driver.add(build_request(2, prompt[:20]))
    driver.run()
    driver.add(build_request(3, prompt, prompt_logprobs=asked))
    driver.run()
    assert driver[2].start.num_cached_tokens == 16, "what they computed may be read by others"
    assert driver[3].start.num_cached_tokens == 0
    assert driver[1].start.prompt_logprobs == driver[3].start.prompt_logprobs
    assert [entry.token_id for entry in driver[3].start.prompt_logprobs] == prompt[1:]


def test_without_prefix_caching_only_children_share():
    driver = build_driver(block_size=BLOCK, caching=False)
    for request_id in (1, 2):
        driver.add(build_request(request_id, HEAD, n=2))
        driver.run()
    assert driver[2].start.num_cached_tokens == 0
    assert driver.engine.stats.prefix_cache_hits == 0


def test_hits_that_nobody_uses_count_as_taken_when_room_is_measured():
    # Head of 3 cached, free blocks; 1 block is in use; the pool has 5: the fourth new block does not exist.
    driver = build_driver(num_blocks=5, block_size=BLOCK, max_model_len=20)
    driver.add(build_request(1, [*HEAD, 1], max_tokens=1))
    driver.run()
    driver.add(build_request(2, [9], max_tokens=4), build_request(3, [*HEAD, 1, 2, 3, 4, 5], max_tokens=1))
    driver.step()
    assert ask(driver, "pool")["num_used_blocks"] == 1, "the third must wait: 3 hits + 2 new blocks + 1 in use"
    driver.run()
    driver.check_complete(3)
    assert driver[3].start.num_cached_tokens == 12


def test_reset_forgets_content_and_disturbs_nobody():
    driver = build_driver(block_size=BLOCK)
    driver.add(build_request(1, HEAD, max_tokens=6))
    driver.step()
    assert ask(driver, "reset_prefix_cache") is True
    driver.add(build_request(2, HEAD))
    driver.run()
    assert driver[2].start.num_cached_tokens == 0
    driver.check_complete(1)


def test_hit_rate_counts_the_tokens_of_first_admissions():
    driver = build_driver(block_size=BLOCK)
    driver.add(build_request(1, [*HEAD, 1]), build_request(2, [*HEAD, 2]))
    driver.run()
    stats = driver.engine.stats
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits, stats.num_prompt_tokens) == (26, 12, 26)
