from __future__ import annotations

import pytest

from tests.support.builders import build_driver, build_request

BLOCK = 4


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("budget", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 7, 64])
@pytest.mark.parametrize("length", [BLOCK, 2 * BLOCK, 3 * BLOCK, 3 * BLOCK + 1])
def test_every_budget_gives_the_answer_of_the_whole_prompt(length, budget, is_async):
    driver = build_driver(block_size=BLOCK, budget=budget, is_async=is_async)
    driver.add(build_request(1, range(length), n=2, max_tokens=6))
    driver.run()
    driver.check_complete(1)


def test_nothing_is_told_before_the_last_chunk():
    driver = build_driver(budget=4)
    driver.add(build_request(1, range(12)))
    for _ in range(2):
        step = driver.step()
        assert step.rows[0].num_draws == 0
        assert driver[1].start is None
        assert driver[1].children[0].token_ids == []
    driver.step()
    assert driver[1].start is not None
    assert len(driver[1].children[0].token_ids) == 1


def test_queue_time_ends_with_the_first_chunk():
    driver = build_driver(budget=4)
    driver.add(build_request(1, range(12)))
    driver.run()
    assert driver[1].start.queue_s == 1.0


@pytest.mark.parametrize("budget", [1, 5, 8, 64])
def test_prompt_logprobs_are_gathered_over_chunks(budget):
    driver = build_driver(budget=budget)
    driver.add(build_request(1, range(40), prompt_logprobs=1, n=2))
    driver.run()
    assert [entry.token_id for entry in driver[1].start.prompt_logprobs] == list(range(1, 40))


def test_decodes_go_on_beside_a_long_prompt():
    driver = build_driver(budget=8)
    driver.add(build_request(1, range(4), max_tokens=9))
    driver.step()
    driver.add(build_request(2, range(50, 90)))
    for _ in range(5):
        assert {row.row_id: row.num_scheduled_tokens for row in driver.step().rows}[1] == 1


def test_prefill_beside_a_decode_is_cut_to_the_target():
    driver = build_driver(budget=200, max_model_len=512, num_blocks=256, target_itl_ms=50)
    driver.add(build_request(1, range(20), max_tokens=40))
    for _ in range(4):
        driver.step()  # what a step costs is learned here: 1 ms a token
    driver.add(build_request(2, range(100, 350)))
    sizes = []
    while driver[2].start is None:
        sizes.append(sum(row.num_scheduled_tokens for row in driver.step().rows))
    assert len(sizes) > 4
    assert all(45 <= size <= 51 for size in sizes[:-1])
    driver.run()


def test_prefill_that_nobody_waits_beside_is_not_cut():
    driver = build_driver(budget=200, max_model_len=512, num_blocks=256, target_itl_ms=50)
    driver.add(build_request(1, range(20), max_tokens=2))
    driver.run()
    driver.add(build_request(2, range(100, 350)))
    assert [row.num_scheduled_tokens for row in driver.step().rows] == [200]
    driver.run()
