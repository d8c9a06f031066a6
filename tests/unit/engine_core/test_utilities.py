from __future__ import annotations

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
