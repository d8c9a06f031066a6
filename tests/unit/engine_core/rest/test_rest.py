"""What runs, waits and ends while the engine rests."""

from __future__ import annotations

import pytest

from pagewire.ipc.outputs import FinishReason
from tests.support.builders import build_driver, build_embedding, build_request
from tests.support.fake_executor import FakeExecutor


def fresh_executor() -> FakeExecutor:
    return FakeExecutor(num_blocks=64, block_size=4, vocab_size=1000)


def running(**options):
    driver = build_driver(**options)
    driver.add(build_request(1, [1, 2, 3], max_tokens=6), build_embedding(2, range(9), pooling="mean"))
    driver.send()
    return driver


@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_kept_goes_on_where_it_was(is_async):
    driver = running(is_async=is_async, budget=5)
    driver.pause("keep")
    driver.add(build_request(3, [7], max_tokens=2))
    assert driver.send() is None
    assert driver.engine.stats.is_paused
    driver.engine.rest.resume()
    driver.run()
    driver.check_complete(1)
    driver.check_complete(3)
    assert driver.engine.stats.num_preemptions == 0


def test_what_is_waited_for_ends_and_later_ones_wait():
    driver = running()
    driver.engine.rest.pause("wait")
    driver.add(build_request(3, [7], max_tokens=2, priority=0))
    driver.settle()
    driver.check_complete(1)
    assert driver[2].embedding is not None
    assert driver[3].is_accepted
    assert not driver[3].is_scheduled
    driver.engine.rest.resume()
    driver.run()
    driver.check_complete(3)


def test_what_is_aborted_says_so_and_later_ones_wait():
    driver = running()
    driver.receive()
    driver.pause("abort")
    assert driver[1].children[0].finish_reason is FinishReason.ABORT
    driver.add(build_request(3, [7], max_tokens=2))
    assert driver.send() is None
    driver.engine.rest.resume()
    driver.run()
    driver.check_complete(3)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_executor_that_slept_is_replaced_by_one_that_knows_nothing(is_async):
    driver = running(is_async=is_async)
    driver.sleep("keep")
    stats = driver.engine.stats
    assert (stats.sleep_level, stats.is_serving, stats.num_used_blocks) == (1, True, 0)
    assert driver.send() is None
    driver.engine.rest.wake_up()
    assert not driver.engine.stats.is_serving, "until there is an executor"
    driver.wake_up(fresh_executor())
    driver.run()
    driver.check_complete(1)
    assert driver.engine.stats.num_executor_restarts == 0


def test_a_pause_outlasts_a_sleep():
    driver = running()
    driver.pause("keep")
    driver.sleep("keep")
    driver.wake_up(fresh_executor())
    assert driver.send() is None
    driver.engine.rest.resume()
    driver.run()
    driver.check_complete(1)


def test_running_requests_are_computed_again_if_all_is_forgotten():
    driver = running()
    driver.pause("keep")
    driver.engine.rest.forget_computed(runs_again=True)
    assert driver.engine.stats.num_used_blocks == 0
    driver.engine.rest.resume()
    driver.run()
    driver.check_complete(1)


def test_deadlines_count_while_the_engine_rests():
    driver = build_driver()
    driver.pause("keep")
    driver.add(build_request(1, [1, 2], timeout_s=5.0))
    driver.expire(100.0)
    assert driver[1].end is not None
    assert driver[1].end.error is not None
    assert driver[1].end.error.kind == "DeadlineExceeded"


def test_a_suspect_that_has_to_wait_holds_nobody_up():
    driver = running()
    driver.engine.rest.pause("wait")
    driver.add(build_request(3, [7], max_tokens=2, is_readded=True, num_deaths=2))
    driver.settle()
    driver.check_complete(1)
    driver.engine.rest.resume()
    driver.run()
    driver.check_complete(3)
