from __future__ import annotations

import pytest

from pagewire.engine_core.deadlines import Deadlines
from pagewire.engine_core.request import Request
from pagewire.ipc.outputs import FinishReason
from tests.support.builders import build_driver, build_request
from tests.support.engine_driver import ALICE


def watch(deadlines, request_id, timeout_s):
    message = build_request(request_id, [1], timeout_s=timeout_s)
    request = Request(ALICE, message, arrival=request_id, now=0.0, max_model_len=9, has_priority=False)
    deadlines.add(request)
    return request


def test_requests_fall_due_in_the_order_of_their_deadlines():
    deadlines = Deadlines()
    late, early, _ = (watch(deadlines, i, timeout_s) for i, timeout_s in ((1, 5.0), (2, 3.0), (3, 9.0)))
    assert deadlines.next_s() == 3.0
    assert deadlines.take_late(2.9) == []
    assert deadlines.take_late(5.0) == [early, late]
    assert deadlines.next_s() == 9.0


def test_ended_request_and_one_without_deadline_never_fall_due():
    deadlines = Deadlines()
    ended, endless = watch(deadlines, 1, 1.0), watch(deadlines, 2, None)
    deadlines.discard(ended)
    deadlines.discard(endless)
    assert deadlines.next_s() is None
    assert deadlines.take_late(1e9) == []


def test_memory_is_that_of_living_requests_though_their_deadlines_are_far():
    deadlines = Deadlines()
    living = watch(deadlines, 1, 5000.0)
    for request_id in range(2, 5000):
        deadlines.discard(watch(deadlines, request_id, 600.0))
    assert len(deadlines._heap) < 100
    assert deadlines.take_late(1e9) == [living]


@pytest.mark.parametrize("is_async", [False, True])
def test_late_request_ends_with_its_tokens_and_gives_back_its_blocks(is_async):
    driver = build_driver(is_async=is_async)
    driver.add(build_request(1, [1] * 9, n=2, max_tokens=30, timeout_s=10.0), build_request(2, [2], max_tokens=20))
    while len(driver[1].children[0].token_ids) < 3:
        driver.send()
        driver.receive()
    assert driver.engine.next_deadline_s() == 10.0
    driver.send()
    driver.expire(10.0)
    end = driver[1].end
    assert (end.error.kind, end.error.param) == ("DeadlineExceeded", "timeout")
    assert {child.finish_reason for child in driver[1].children} == {FinishReason.ERROR}
    assert driver.engine.next_deadline_s() is None
    assert {table["request_id"] for table in driver.block_tables()} == {2}
    driver.run()
    driver.check_complete(2)


def test_request_may_be_late_before_it_ever_runs():
    driver = build_driver(max_num_seqs=1)
    driver.add(build_request(1, [1]), build_request(2, [2], timeout_s=0.5))
    driver.expire(0.4)
    assert driver[2].end is None
    driver.expire(0.5)
    assert driver[2].end.error.kind == "DeadlineExceeded"
    assert not driver[2].end.is_refused
    driver.run()
    driver.check_complete(1)


@pytest.mark.parametrize(("is_readded", "limit"), [(False, "within its 2.5 s"), (True, "in time")])
def test_text_tells_the_users_timeout_and_not_what_was_left_of_it(is_readded, limit):
    driver = build_driver()
    driver.add(build_request(1, [1], timeout_s=2.5, is_readded=is_readded))
    driver.expire(3.0)
    assert f"not finished {limit}; it has 0 output tokens" in driver[1].end.error.message


def test_request_in_time_is_not_late_afterwards():
    driver = build_driver()
    driver.add(build_request(1, [1], timeout_s=1000.0))
    driver.run()
    driver.expire(2000.0)
    driver.check_complete(1)
