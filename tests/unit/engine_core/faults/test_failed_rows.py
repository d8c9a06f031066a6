"""A row that the executor can't run takes its own request with it and nothing else."""

from __future__ import annotations

import pytest

from pagewire.ipc.errors import ErrorInfo
from pagewire.ipc.outputs import FinishReason
from tests.support.builders import build_driver, build_request

ERROR = ErrorInfo(kind="InvalidRequest", message="planted")
HEAD = list(range(100, 112))
BAD = 13


def fails(row):
    return ERROR if row.sampling.seed == BAD else None


@pytest.mark.parametrize("is_async", [False, True])
def test_failed_row_fails_its_request_alone(is_async):
    driver = build_driver(fails=fails, is_async=is_async)
    driver.add(build_request(1, [1, 2]), build_request(2, [3, 4], seed=BAD, n=3), build_request(3, [5, 6]))
    driver.run()
    assert driver[2].end.error == ERROR
    assert not driver[2].end.is_refused
    assert driver[2].start is None
    driver.check_complete(1)
    driver.check_complete(3)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("budget", [7, 64])
def test_readers_of_blocks_that_were_never_written_are_computed_again(is_async, budget):
    driver = build_driver(fails=fails, is_async=is_async, budget=budget)
    driver.add(build_request(1, [*HEAD, 1], seed=BAD), build_request(2, [*HEAD, 2]), build_request(3, [*HEAD, 3], n=2))
    driver.run()
    assert driver[1].end.error == ERROR
    driver.check_complete(2)
    driver.check_complete(3)
    driver.add(build_request(4, [*HEAD, 4]))
    driver.run()
    driver.check_complete(4)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("prompt_logprobs", [None, 0])  # with them nobody reads, and equal blocks are written twice
def test_bad_requests_with_one_head_all_fail_and_nobody_is_stuck(prompt_logprobs, is_async):
    driver = build_driver(fails=fails, is_async=is_async)
    bad = [build_request(i, [*HEAD, i], seed=BAD, prompt_logprobs=prompt_logprobs) for i in range(3)]
    driver.add(*bad, build_request(3, [*HEAD, 3]))
    driver.run()
    assert [driver[i].end.error for i in range(3)] == [ERROR] * 3
    driver.check_complete(3)
    assert len(driver.steps) < 20


def test_row_that_fails_after_it_was_taken_for_a_reader_leaves_no_block_that_was_never_written():
    driver = build_driver(fails=fails, is_async=True, block_size=1, budget=1, max_num_seqs=1, num_blocks=5)
    driver.add(build_request(1, [3, 1], seed=BAD), build_request(2, [3, 1], seed=BAD), build_request(3, [3, 1]))
    # The second request runs while the first one's second step, sent ahead, is still to fail.
    driver.run()
    assert [driver[i].end.error for i in (1, 2)] == [ERROR] * 2
    driver.check_complete(3)


def test_blocks_of_a_failed_row_are_forgotten_though_it_was_aborted_before():
    driver = build_driver(fails=fails)
    driver.add(build_request(1, [*HEAD, 1], seed=BAD))
    driver.send()
    driver.abort(1)
    driver.receive()
    driver.add(build_request(2, [*HEAD, 2]))
    driver.run()
    assert driver[2].start.num_cached_tokens == 0
    driver.check_complete(2)


def test_child_that_fails_after_a_preemption_fails_all_its_siblings():
    fails_now = []
    driver = build_driver(
        num_blocks=8, block_size=2, max_model_len=14, caching=False, fails=lambda row: ERROR if fails_now else None
    )
    driver.add(build_request(1, [1] * 3, max_tokens=9), build_request(2, [2] * 3, n=2, max_tokens=9))
    while driver.engine.stats.num_preemptions == 0:
        driver.step()
    fails_now.append(True)
    driver.run()
    assert driver[2].end.error == ERROR
    assert FinishReason.ERROR in {child.finish_reason for child in driver[2].children}
    driver.check_complete(1)
