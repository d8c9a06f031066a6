"""What tools.chaos makes of what it saw."""

from __future__ import annotations

import asyncio

from tools.chaos.report import percentile, read_restarts, recoveries
from tools.chaos.streams import Stream, StreamRequest, make_requests
from tools.chaos.strikes import Strike
from tools.processes import Process

PROCESS = Process(pid=1, started=1, parent=1, state="S", module="m")


def strike(time_s: float, target: str = "core", *, is_while_recovering: bool = False) -> Strike:
    return Strike(time_s, target, "kill", PROCESS, is_while_recovering, num_prefilling=0)


def stream(*token_times_s: float) -> Stream:
    return Stream(StreamRequest({}, False), 0.0, asyncio.timeout(None), list(token_times_s))


def test_equal_seeds_make_equal_requests_of_both_temperatures_and_lengths() -> None:
    requests = make_requests(40, seed=3)
    assert requests == make_requests(40, seed=3)
    assert requests != make_requests(40, seed=4)
    kinds = {(request.body["temperature"], request.is_long) for request in requests}
    assert kinds == {(0.0, False), (0.0, True), (1.0, False), (1.0, True)}


async def test_pause_is_the_gap_behind_the_tokens_that_were_under_way() -> None:
    assert stream(1.0, 1.1, 1.2, 4.2, 4.3).pauses_s([1.05]) == [3.0]


async def test_strike_before_the_first_token_or_after_the_last_makes_no_pause() -> None:
    assert stream(1.0, 1.1).pauses_s([0.5, 1.1, 2.0]) == []


def test_recovery_is_counted_where_one_strike_made_one_outage() -> None:
    strikes = [strike(10.0), strike(20.0, "executor"), strike(21.0, is_while_recovering=True), strike(30.0)]
    outages = [(10.2, 13.0), (20.1, 25.0), (30.1, float("inf"))]
    assert recoveries(strikes[:3], outages[:2]) == {("core", "kill"): [(10.2 - 10.0, 3.0)]}


def test_restarts_are_read_by_process() -> None:
    metrics = (
        "# TYPE pagewire_restarts_total counter\n"
        'pagewire_restarts_total{model_name="m",engine="0",process="core"} 3.0\n'
        'pagewire_restarts_total{model_name="m",engine="0",process="executor"} 12.0\n'
    )
    assert read_restarts(metrics) == {"core": 3, "executor": 12}


def test_percentile_of_few_values_is_one_of_them() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
