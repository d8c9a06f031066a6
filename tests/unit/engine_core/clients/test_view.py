"""The picture of the engine for people: what blocks hold, how far requests are, bounded whatever the engine's size."""

from __future__ import annotations

from pagewire.engine_core.clients import view
from pagewire.ipc.requests import CallUtility
from tests.support.builders import build_driver, build_request
from tests.support.engine_driver import ALICE


def picture(driver):
    return driver.engine.call_utility(ALICE, CallUtility(call_id=1, method="view")).result


def test_cells_show_free_cached_used_and_shared_blocks():
    driver = build_driver(block_size=4, num_blocks=8, budget=64)
    driver.add(build_request(1, range(9)))
    driver.run()
    seen = picture(driver)
    assert seen["cells"].count(view.CACHED) == seen["num_findable_blocks"] > 0
    assert seen["cells"].count(view.USED) == seen["num_used_blocks"] == 0
    driver.add(build_request(2, range(9)), build_request(3, range(9)))
    driver.step()
    seen = picture(driver)
    assert seen["cells"].count(view.SHARED) == 2, "the two full blocks of the common prompt"
    assert len(seen["cells"]) == seen["num_blocks"] == 8
    assert seen["cells"].count(view.USED) + 2 == seen["num_used_blocks"] == seen["stats"]["num_used_blocks"]
    driver.run()


def test_a_large_pool_is_looked_at_in_stretches():
    driver = build_driver(block_size=4, num_blocks=view.MAX_CELLS * 5 + 1)
    seen = picture(driver)
    assert (seen["blocks_per_cell"], seen["samples_per_cell"]) == (6, view.MAX_SAMPLES_PER_CELL)
    assert set(seen["cells"]) == {view.FREE}
    assert len(seen["cells"]) <= view.MAX_CELLS * view.MAX_SAMPLES_PER_CELL


def test_requests_show_their_progress_and_nothing_that_users_chose():
    driver = build_driver(block_size=4, budget=8)
    driver.add(build_request(1, range(8), max_tokens=5), build_request(2, [7, 8]))
    driver.step()
    running, waiting = picture(driver)["requests"]
    assert (running["status"], running["num_output_tokens"], running["max_output_tokens"]) == ("running", 1, 5)
    assert (waiting["status"], waiting["num_computed_tokens"], waiting["num_blocks"]) == ("waiting", 0, 0)
    assert not {"label", "request_id", "token_ids"} & running.keys()
    driver.run()


def test_of_many_requests_the_first_are_told():
    driver = build_driver()
    driver.add(*(build_request(number, [1, 2]) for number in range(1, view.MAX_REQUESTS + 20)))
    seen = picture(driver)
    assert seen["num_children"] == view.MAX_REQUESTS + 19
    assert len(seen["requests"]) == view.MAX_REQUESTS
