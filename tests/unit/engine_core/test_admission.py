from __future__ import annotations

import pytest

from pagewire.engine_core.admission import MAX_RETRY_AFTER_S, AdmissionRate
from pagewire.ipc.requests import CallUtility
from tests.support.builders import build_driver, build_request
from tests.support.engine_driver import ALICE


def refusal(driver, request_id):
    end = driver[request_id].end
    assert end is not None, f"request {request_id} was taken"
    assert end.is_refused
    return end.error


def test_requests_beyond_the_bound_are_refused_and_the_others_finish():
    driver = build_driver(max_waiting_requests=2)
    driver.add(*(build_request(i, [i]) for i in range(1, 5)))
    assert [refusal(driver, i).kind for i in (3, 4)] == ["Overloaded"] * 2
    assert "--max-waiting-requests" in refusal(driver, 3).message
    driver.run()
    driver.check_complete(1)
    driver.check_complete(2)


def test_a_request_that_runs_makes_room_for_another():
    driver = build_driver(max_waiting_requests=1, max_num_seqs=1)
    driver.add(build_request(1, [1]))
    driver.step()
    driver.add(build_request(2, [2]), build_request(3, [3]))
    assert driver[2].end is None
    assert refusal(driver, 3).kind == "Overloaded"


def test_prompt_tokens_are_bounded_by_themselves():
    driver = build_driver(max_waiting_tokens=10)
    driver.add(build_request(1, range(6)), build_request(2, range(5)), build_request(3, range(4)))
    assert "--max-waiting-tokens" in refusal(driver, 2).message
    assert driver[3].end is None
    assert driver.engine.stats.num_waiting_tokens == 10


def test_prompt_longer_than_the_bound_is_taken_when_nothing_waits():
    driver = build_driver(max_waiting_tokens=10)
    driver.add(build_request(1, range(20)), build_request(2, [1]))
    assert driver[1].end is None
    assert refusal(driver, 2).kind == "Overloaded"


def test_no_bound_refuses_nothing():
    driver = build_driver()
    driver.add(*(build_request(i, [i % 9] * 8) for i in range(1, 1000)))
    assert all(driver[i].end is None for i in range(1, 1000))


def test_preempted_requests_are_not_counted():
    driver = build_driver(num_blocks=6, block_size=2, max_model_len=10, max_waiting_requests=2)
    driver.add(build_request(1, [1] * 5, max_tokens=5), build_request(2, [2] * 5, max_tokens=5))
    while driver.engine.stats.num_preemptions == 0:
        driver.step()
    stats = driver.engine.stats
    assert (stats.num_waiting, stats.num_waiting_tokens) == (1, 0)
    driver.run()


@pytest.mark.parametrize("leave", ["abort", "finish"])
def test_waiting_tokens_go_with_their_request(leave):
    driver = build_driver(max_num_seqs=1)
    driver.add(build_request(1, range(3)), build_request(2, range(7)))
    assert driver.engine.stats.num_waiting_tokens == 10
    if leave == "abort":
        driver.abort(1, 2)
    driver.run()
    assert driver.engine.stats.num_waiting_tokens == 0


def test_request_that_is_added_again_is_exempt_from_bounds():
    driver = build_driver(max_waiting_requests=1)
    driver.add(build_request(1, [1]), build_request(2, [2], is_readded=True))
    driver.run()
    driver.check_complete(2)


def test_draining_engine_refuses_new_requests_and_finishes_those_it_has():
    driver = build_driver()
    driver.add(build_request(1, [1]))
    drain = CallUtility(call_id=1, method="drain")
    assert driver.engine.call_utility(ALICE, drain).result == 1
    driver.add(build_request(2, [2]), build_request(3, [3], is_readded=True))
    assert refusal(driver, 2).kind == "Overloaded"
    driver.run()
    driver.check_complete(1)
    driver.check_complete(3)
    assert driver.engine.call_utility(ALICE, drain).result == 0


def test_retry_after_follows_the_rate_of_admission():
    slow, fast = (retry_after(seconds_per_request) for seconds_per_request in (2.0, 0.5))
    assert slow == pytest.approx(40, abs=5)
    assert fast == pytest.approx(10, abs=2)


def retry_after(seconds_per_request):
    """Let 20 requests wait while others are admitted one by one, and ask when the 20 will be in."""
    rate = AdmissionRate()
    now = 0.0
    rate.observe(0, 0, is_waiting=True, now=now)
    for _ in range(50):
        now += seconds_per_request
        rate.observe(1, 100, is_waiting=True, now=now)
    return rate.predict_s(20, 2000, now)


def test_long_prompts_take_their_time_whatever_the_rate_of_requests():
    rate = AdmissionRate()
    rate.observe(0, 0, is_waiting=True, now=0.0)
    rate.observe(10, 1000, is_waiting=True, now=1.0)
    assert rate.predict_s(1, 30_000, 1.0) == pytest.approx(30)


def test_time_without_waiting_requests_does_not_count():
    rate = AdmissionRate()
    rate.observe(5, 5, is_waiting=False, now=0.0)
    rate.observe(5, 5, is_waiting=True, now=1000.0)
    assert rate.predict_s(100, 100, 1000.0) == 0.0


def test_engine_that_stands_still_puts_callers_off_for_longer_and_longer():
    driver = build_driver(max_num_seqs=1, max_waiting_requests=1)
    driver.add(build_request(1, [1], max_tokens=60))
    driver.step()
    driver.add(build_request(2, [2]))
    retries = []
    for request_id in (3, 4, 5, 6):
        driver.step()
        driver.add(build_request(request_id, [3]))
        retries.append(refusal(driver, request_id).retry_after_s)
        driver.now += 10.0
    assert retries == sorted(retries)
    assert retries[0] >= 1
    driver.now += 1000.0
    driver.add(build_request(7, [3]))
    assert refusal(driver, 7).retry_after_s == MAX_RETRY_AFTER_S
