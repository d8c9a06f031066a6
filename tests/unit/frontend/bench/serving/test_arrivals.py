from __future__ import annotations

import math
from itertools import pairwise
from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.frontend.bench.serving.arrivals import arrival_times_s


def gaps(count: int = 20_000, *, burstiness: float, rate: float = 10.0, seed: int = 1) -> list[float]:
    times = arrival_times_s(count, rate=rate, burstiness=burstiness, seed=seed)
    return [b - a for a, b in pairwise([0.0, *times])]


def test_an_infinite_rate_sends_all_at_once():
    assert arrival_times_s(3, rate=math.inf, burstiness=1.0, seed=0) == [0.0, 0.0, 0.0]


def test_infinite_burstiness_is_even():
    assert arrival_times_s(3, rate=4.0, burstiness=math.inf, seed=0) == [0.25, 0.5, 0.75]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_are_gamma_distributed(burstiness: float):
    found = gaps(burstiness=burstiness)
    assert mean(found) == pytest.approx(0.1)
    # The coefficient of variation of a gamma distribution is 1 / sqrt(shape).
    assert pstdev(found) / mean(found) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_poisson_gaps_are_exponential():
    found = gaps(burstiness=1.0)
    for limit in (0.05, 0.1, 0.3):
        share = sum(gap <= limit for gap in found) / len(found)
        assert share == pytest.approx(1 - math.exp(-limit / 0.1), abs=0.01)


@given(
    count=st.integers(1, 50),
    rate=st.floats(0.1, 1000),
    burstiness=st.floats(1e-6, 100) | st.just(math.inf),
    seed=st.integers(),
)
def test_the_last_request_is_sent_at_count_over_rate(count: int, rate: float, burstiness: float, seed: int):
    times = arrival_times_s(count, rate=rate, burstiness=burstiness, seed=seed)
    assert len(times) == count
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] == pytest.approx(count / rate)


def test_the_seed_decides():
    assert gaps(5, burstiness=1.0, seed=1) == gaps(5, burstiness=1.0, seed=1)
    assert gaps(5, burstiness=1.0, seed=1) != gaps(5, burstiness=1.0, seed=2)
