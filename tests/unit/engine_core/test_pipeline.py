"""A pipeline's stages all have work, and its requests keep getting their turns."""

from __future__ import annotations

import itertools

import pytest

from pagewire.ipc.steps import ExecuteStep
from tests.support.builders import build_driver, build_request
from tests.support.pipeline_clock import PipelineRun, run_pipeline

STAGE_S = 0.005  # of any step
TOKEN_S = 0.0002


def stage_s(step: ExecuteStep) -> float:
    return STAGE_S + TOKEN_S * sum(row.num_scheduled_tokens for row in step.rows)


def run_requests(num_requests: int, pp: int, *, num_tokens: int = 40, is_async: bool = True) -> PipelineRun:
    driver = build_driver(pp=pp, is_async=is_async, max_num_seqs=16, num_blocks=256)
    requests = [build_request(i, [i + 1] * 6, max_tokens=num_tokens) for i in range(num_requests)]
    return run_pipeline(driver, [(0.0, request) for request in requests], [stage_s] * pp)


@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("per_stage", [1, 2, 3])
def test_no_stage_idles_with_a_request_for_each(pp: int, per_stage: int):
    shares = run_requests(per_stage * pp, pp).idle_shares()
    assert max(shares) < 0.15  # the hops of 0.4 ms, the filling of the pipeline and its running dry included


def test_one_step_at_a_time_leaves_each_stage_idle_while_the_other_works():
    assert min(run_requests(4, 2, is_async=False).idle_shares()) > 0.5


@pytest.mark.parametrize(("num_requests", "pp"), [(5, 2), (7, 3), (3, 4), (9, 4)])
def test_turns_are_taken_evenly(num_requests: int, pp: int):
    run = run_requests(num_requests, pp)
    largest = -(-num_requests // pp)
    cycle_s = pp * (STAGE_S + largest * TOKEN_S) + 0.001
    for request_id in range(num_requests):
        steady = run.gaps_s(request_id)[2:]  # all of them run by then
        assert max(steady) < cycle_s, "everybody has a token in every cycle"


def test_steps_hold_equal_parts_of_what_runs():
    driver = build_driver(pp=2, is_async=True)
    driver.add(*(build_request(i, [i + 1] * 3, max_tokens=20) for i in range(5)))
    driver.run()
    assert {len(step.rows) for step in driver.steps} == {3, 2}


def test_requests_that_come_and_go_are_spread_anew():
    driver = build_driver(pp=2, is_async=True, max_num_seqs=16)
    early = [build_request(i, [i + 1] * 3, max_tokens=10 + 5 * i) for i in range(4)]
    late = [build_request(10 + i, [i + 20] * 3, max_tokens=60) for i in range(4)]
    arrivals = [(0.0, request) for request in early] + [(0.05 + 0.013 * i, request) for i, request in enumerate(late)]
    run = run_pipeline(driver, arrivals, [stage_s] * 2)
    assert [len(step.rows) for step in driver.steps[-80:-10]] == [2] * 70, "the four that are left"
    assert max(run.idle_shares()) < 0.15


def test_prefill_goes_on_beside_decodes_within_the_target():
    driver = build_driver(pp=2, is_async=True, target_itl_ms=20, max_model_len=512, num_blocks=512, budget=200)
    decodes = [build_request(i, [i + 1] * 6, max_tokens=200) for i in range(4)]
    prompt = build_request(9, range(400), max_tokens=4)
    run = run_pipeline(driver, [(0.0, request) for request in decodes] + [(0.5, prompt)], [stage_s] * 2)
    chunks = [row.num_scheduled_tokens for step in driver.steps for row in step.rows if row.num_scheduled_tokens > 6]
    assert len(chunks) > 3, "it was cut"
    gaps = list(itertools.chain.from_iterable(run.gaps_s(i)[10:] for i in range(4)))
    assert max(gaps) < 0.040
    driver.check_complete(9)


def test_draws_are_told_with_the_rows_next_turn_and_once():
    driver = build_driver(pp=2, is_async=True)
    driver.add(build_request(1, [1, 2, 3], max_tokens=4))
    driver.run()
    tokens = driver[1].children[0].token_ids
    told = [row.drawn_token_ids for step in driver.steps for row in step.rows]
    assert told == [[], [tokens[0]], [tokens[1]], [tokens[2]]]


def test_children_of_a_fork_are_sent_whole_and_their_parent_is_told_its_own_draw():
    driver = build_driver(pp=2, is_async=True)
    driver.add(build_request(1, range(6), n=3, max_tokens=3))
    driver.run()
    driver.check_complete(1)
    second = driver.steps[1]
    (parent,) = (row for row in second.rows if row.row_id == 1)
    assert parent.drawn_token_ids == driver[1].children[0].token_ids[:1]
    for new in (row for step in driver.steps[1:] for row in step.new_rows):
        assert new.token_ids[-1] == driver[1].children[new.child].token_ids[0]


def test_preempted_row_is_sent_whole_again():
    driver = build_driver(num_blocks=8, max_model_len=28, caching=False, pp=2, is_async=True)
    driver.add(*(build_request(i, [i] * 9, max_tokens=12) for i in range(3)))
    driver.run()
    assert driver.engine.stats.num_preemptions > 0
    for request_id in range(3):
        driver.check_complete(request_id)
