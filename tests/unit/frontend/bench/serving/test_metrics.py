"""Figures computed by hand from a few requests."""

from __future__ import annotations

import pytest

from pagewire.frontend.bench.serving.metrics import RequestOutcome, is_good, summarize

# 0.0 --- 0.1 ------- 0.3 ------- 0.5: three chunks, three tokens
FIRST = RequestOutcome(10, 0.0, num_output_tokens=3, ttft_s=0.1, latency_s=0.5, itls_s=(0.2, 0.2), text="abc")
# 0.4 --- 0.7 - 0.8 - 0.9 --- 1.2: four chunks, seven tokens
SECOND = RequestOutcome(30, 0.4, num_output_tokens=7, ttft_s=0.3, latency_s=0.8, itls_s=(0.1, 0.1, 0.3))
# 1.2 --- 1.4: one token
THIRD = RequestOutcome(5, 1.2, num_output_tokens=1, ttft_s=0.2, latency_s=0.2)
FAILED = RequestOutcome(99, 0.1, error="HTTP 500")
ALL = [FIRST, SECOND, THIRD, FAILED]


def test_counts_and_throughput_leave_failed_requests_out():
    metrics = summarize(ALL, duration_s=2.0)
    assert (metrics.completed, metrics.failed) == (3, 1)
    assert (metrics.total_input_tokens, metrics.total_output_tokens) == (45, 11)
    assert metrics.request_throughput == 1.5
    assert metrics.output_throughput == 5.5
    assert metrics.total_token_throughput == 28.0
    assert metrics.request_goodput is None


def test_time_per_output_token_leaves_the_first_token_out():
    assert FIRST.tpot_s == pytest.approx(0.2)
    assert SECOND.tpot_s == pytest.approx(0.5 / 6)
    assert THIRD.tpot_s == 0.0


def test_latencies_are_in_milliseconds():
    metrics = summarize(ALL, duration_s=2.0, percentiles=(50.0, 99.0))
    ttft = metrics.latencies["ttft"]
    assert ttft.mean == pytest.approx(200)
    assert ttft.median == pytest.approx(200)
    assert ttft.std == pytest.approx((2 * 100**2 / 3) ** 0.5)
    assert ttft.percentiles == pytest.approx({50.0: 200, 99.0: 298})
    assert metrics.latencies["e2el"].mean == pytest.approx(500)


def test_a_single_token_has_no_time_per_output_token():
    assert summarize(ALL, duration_s=2.0).latencies["tpot"].mean == pytest.approx((200 + 500 / 6) / 2)


def test_inter_token_latencies_of_all_requests_count_alike():
    itl = summarize(ALL, duration_s=2.0).latencies["itl"]
    assert itl.mean == pytest.approx(180)
    assert itl.median == pytest.approx(200)


def test_goodput_counts_requests_that_keep_every_limit():
    limits = {"ttft": 250.0, "e2el": 600.0}
    assert [is_good(outcome, limits) for outcome in ALL[:3]] == [True, False, True]
    assert summarize(ALL, duration_s=2.0, limits_ms=limits).request_goodput == 1.0
    assert summarize(ALL, duration_s=2.0, limits_ms={"tpot": 100.0}).request_goodput == 1.0


def test_a_limit_that_is_just_met_is_kept():
    assert is_good(THIRD, {"ttft": 200.0})


def test_the_busiest_second_has_the_peak_throughput():
    # Second 0: 3 tokens of the first, 3 of the second's 4 chunks (7 / 4 tokens each). Second 1: the rest.
    assert summarize(ALL, duration_s=2.0).peak_output_throughput == pytest.approx(3 + 3 * 7 / 4)


def test_a_run_shorter_than_a_second_is_one_window():
    assert summarize([FIRST], duration_s=0.6).peak_output_throughput == pytest.approx(3 / 0.6)


def test_requests_that_follow_each_other_do_not_overlap():
    assert summarize(ALL, duration_s=2.0).peak_concurrent_requests == 2
    in_turn = [RequestOutcome(1, start_s, num_output_tokens=1, latency_s=0.5) for start_s in (0.5, 1.0, 1.5)]
    assert summarize(in_turn, duration_s=2.0).peak_concurrent_requests == 1


def test_nothing_measured_is_zeros():
    metrics = summarize([FAILED], duration_s=1.0, limits_ms={"ttft": 1.0})
    assert (metrics.completed, metrics.failed, metrics.request_goodput) == (0, 1, 0.0)
    assert metrics.peak_output_throughput == 0.0
    assert metrics.peak_concurrent_requests == 0
    assert metrics.latencies["ttft"].percentiles == {99.0: 0.0}
