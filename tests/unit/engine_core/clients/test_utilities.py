from __future__ import annotations

import msgspec
import pytest

from pagewire.ipc.codec import core_messages, encode
from pagewire.ipc.requests import CallUtility
from tests.support.builders import build_driver, build_request
from tests.support.engine_driver import ALICE

METHODS = ["block_tables", "pool", "stats", "reset_prefix_cache", "check_invariants", "drain"]


@pytest.mark.parametrize("method", METHODS)
def test_every_answer_is_made_of_plain_values(method):
    driver = build_driver()
    driver.add(build_request(1, range(9), n=2))
    driver.step()
    result = driver.engine.call_utility(ALICE, CallUtility(call_id=3, method=method))
    assert result.error is None
    assert result.call_id == 3
    assert core_messages.decode(encode(result)) == result


def test_unknown_method_names_the_known_ones():
    result = build_driver().engine.call_utility(ALICE, CallUtility(call_id=3, method="dance"))
    assert result.error.kind == "InvalidRequest"
    assert all(method in result.error.message for method in METHODS)


def test_arguments_that_nothing_takes_are_refused():
    result = build_driver().engine.call_utility(ALICE, CallUtility(call_id=3, method="pool", args=[1]))
    assert result.error.param == "args"


def test_block_tables_show_waiting_and_running_children():
    driver = build_driver(block_size=4, budget=8)
    driver.add(build_request(1, range(8)), build_request(2, [7, 8]))
    driver.step()
    tables = driver.engine.call_utility(ALICE, CallUtility(call_id=3, method="block_tables")).result
    assert [(t["request_id"], t["status"], t["num_tokens"], t["num_computed_tokens"]) for t in tables] == [
        (1, "running", 9, 8),
        (2, "waiting", 2, 0),
    ]
    assert tables[0]["block_table"] == [0, 1]
    driver.run()


def test_pool_counts_used_and_cached_blocks():
    driver = build_driver(block_size=4, num_blocks=16)
    driver.add(build_request(1, range(9)))
    driver.run()
    pool = driver.engine.call_utility(ALICE, CallUtility(call_id=3, method="pool")).result
    assert pool == {
        "num_blocks": 16,
        "num_free_blocks": 16,
        "num_used_blocks": 0,
        "num_cached_blocks": 3,
        "ref_counts": {},
    }


@pytest.mark.parametrize(
    ("labels", "ended"),
    [
        ([], {1, 2, 3}),
        (["a"], {1, 2}),
        (["a-1"], {2}),
        (["b-x"], {3}),
        (["b"], set()),
        (["none", "b-x", "a-0"], {1, 3}),
    ],
)
def test_requests_are_aborted_by_their_labels(labels, ended):
    driver = build_driver()
    for request_id, label in ((1, "a-0"), (2, "a-1"), (3, "b-x")):
        driver.add(msgspec.structs.replace(build_request(request_id, [1, 2]), label=label))
    result = driver.engine.call_utility(ALICE, CallUtility(call_id=1, method="abort_requests", args=labels))
    driver.collect()
    assert result.result == len(ended)
    assert {request_id for request_id in (1, 2, 3) if driver[request_id].end is not None} == ended


def test_what_runs_may_be_computed_again():
    driver = build_driver(block_size=4)
    driver.add(build_request(1, range(9), max_tokens=6))
    driver.step()
    for args, num_preemptions in (([], 0), ([False, True], 0), ([True], 1)):
        call = CallUtility(call_id=1, method="reset_prefix_cache", args=args)
        assert driver.engine.call_utility(ALICE, call).result is True
        assert driver.engine.stats.num_preemptions == num_preemptions
    driver.run()
    driver.check_complete(1)
    call = CallUtility(call_id=1, method="reset_prefix_cache", args=["yes"])
    assert driver.engine.call_utility(ALICE, call).error.param == "args"
