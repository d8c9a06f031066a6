from __future__ import annotations

import pytest

from pagewire.ipc.outputs import FinishReason
from tests.support.builders import build_driver, build_request


def tokens_by_row(step):
    return {row.row_id: row.num_scheduled_tokens for row in step.rows}


def test_running_requests_come_before_waiting_ones_and_prompts_take_what_is_left():
    driver = build_driver(budget=8)
    driver.add(build_request(1, range(6)), build_request(2, range(100, 120)))
    assert tokens_by_row(driver.step()) == {1: 6, 2: 2}
    driver.add(build_request(3, range(200, 210)))
    assert tokens_by_row(driver.step()) == {1: 1, 2: 7}
    assert tokens_by_row(driver.step()) == {1: 1, 2: 7}
    assert tokens_by_row(driver.step()) == {1: 1, 2: 4, 3: 3}


@pytest.mark.parametrize("budget", [1, 3, 8, 64])
def test_no_step_exceeds_the_token_budget(budget):
    driver = build_driver(budget=budget)
    driver.add(*(build_request(i, range(i * 10, i * 10 + 9), max_tokens=5) for i in range(6)))
    driver.run()
    sizes = [sum(row.num_scheduled_tokens for row in step.rows) for step in driver.steps]
    assert max(sizes) <= budget
    assert min(sizes) >= 1


def test_at_most_max_num_seqs_run_and_a_fork_counts_for_all_its_children():
    driver = build_driver(max_num_seqs=4)
    driver.add(build_request(1, range(3), n=3), build_request(2, range(50, 53), n=2), build_request(3, range(90, 93)))
    assert len(driver.step().rows) == 1  # 3 + 2 are too many, and nobody overtakes
    driver.run()
    assert max(len(step.rows) for step in driver.steps) <= 4


def test_no_more_run_than_the_budget_can_give_a_token_each():
    driver = build_driver(max_num_seqs=8, budget=2)
    driver.add(*(build_request(i, [i], max_tokens=5) for i in range(4)))
    driver.run()
    assert [sorted(tokens_by_row(step)) for step in driver.steps] == [[1, 2]] * 5 + [[3, 4]] * 5


def test_fork_of_more_children_than_the_budget_runs_alone():
    driver = build_driver(max_num_seqs=8, budget=2)
    driver.add(build_request(1, [1], n=4), build_request(2, [2]))
    driver.run()
    driver.check_complete(1)
    driver.check_complete(2)


def test_children_of_a_fork_decode_while_a_long_prompt_is_prefilled():
    driver = build_driver(budget=8, max_model_len=128)
    driver.add(build_request(1, range(4), n=3, max_tokens=20), build_request(2, range(100, 160)))
    driver.step()
    sizes = [sorted(row.num_scheduled_tokens for row in driver.step().rows) for _ in range(4)]
    assert sizes == [[1, 1, 1, 5]] * 4, "each child has its token, the prompt takes what is left"


def test_requests_are_admitted_in_order_of_arrival():
    driver = build_driver(max_num_seqs=1)
    driver.add(*(build_request(i, [i], max_tokens=1) for i in (5, 3, 4)))
    assert [driver.step().new_rows[0].token_ids for _ in range(3)] == [[5], [3], [4]]


def test_priority_policy_admits_the_lower_value_first():
    driver = build_driver(max_num_seqs=1, policy="priority")
    driver.add(*(build_request(i, [i], max_tokens=1, priority=p) for i, p in ((1, 5), (2, -1), (3, 5), (4, 0))))
    assert [driver.step().new_rows[0].token_ids for _ in range(4)] == [[2], [4], [1], [3]]


def test_admission_needs_room_for_the_whole_prompt():
    driver = build_driver(num_blocks=6, block_size=4, max_model_len=20, budget=4)
    driver.add(build_request(1, range(12), max_tokens=2), build_request(2, range(50, 66), max_tokens=2))
    for _ in range(3):
        assert len(driver.step().rows) == 1  # 3 of 6 blocks are taken, the second needs 4
    driver.run()
    assert driver.engine.stats.num_preemptions == 0
    driver.check_complete(2)


def test_latest_arrival_is_preempted_and_a_preempting_step_admits_nobody():
    driver = build_driver(num_blocks=6, block_size=4, max_model_len=20, caching=False)
    driver.add(*(build_request(i, [i] * 7, max_tokens=9) for i in (1, 2, 3)))
    driver.step()
    driver.add(build_request(4, [4], max_tokens=1))
    while driver.engine.stats.num_preemptions == 0:
        step = driver.step()
    assert step.removed_row_ids == [3]
    assert [row.row_id for row in step.rows] == [1, 2]
    assert step.new_rows == []
    driver.run()
    admitted = [row.token_ids[0] for step in driver.steps for row in step.new_rows]
    assert admitted[:3] == [1, 2, 3]
    assert 3 in admitted[3 : admitted.index(4)], "the preempted one is admitted before those that never ran"


def test_lowest_priority_is_preempted_even_if_it_arrived_first():
    driver = build_driver(num_blocks=4, block_size=4, max_model_len=12, policy="priority", caching=False)
    driver.add(build_request(1, [1] * 7, priority=9), build_request(2, [2] * 7, priority=0))
    driver.run()
    assert driver[1].end.num_preemptions > 0
    assert driver[2].end.num_preemptions == 0


def preempt_a_scheduled_child():
    """Drive a full pool to the step in which request 2 takes the blocks of request 1, which stands before it."""
    driver = build_driver(num_blocks=9, block_size=4, max_model_len=32, policy="priority", caching=False, budget=8)
    driver.add(build_request(1, [1] * 5, priority=9, max_tokens=9))
    driver.step()
    driver.add(build_request(2, [2] * 7, max_tokens=9), build_request(3, [3] * 20, priority=1))
    driver.step()
    assert [row.num_scheduled_tokens for row in driver.step().rows] == [1, 1, 6]
    assert driver.engine.stats.num_used_blocks == 9
    driver.add(build_request(4, [4], priority=2, max_tokens=1))
    step = driver.step()
    assert driver.engine.stats.num_preemptions == 1
    return driver, step


def test_victim_that_was_scheduled_already_gives_its_budget_back():
    driver, step = preempt_a_scheduled_child()
    assert step.removed_row_ids == [1]
    assert tokens_by_row(step) == {2: 1, 3: 7}
    driver.run()
    for request_id in (1, 2, 3, 4):
        driver.check_complete(request_id)


def test_step_that_preempted_admits_nobody_though_there_is_room():
    driver, step = preempt_a_scheduled_child()
    assert step.new_rows == []
    driver.run()
    admitted = [row.token_ids[0] for step in driver.steps for row in step.new_rows]
    assert admitted[-2:] == [4, 1], "then it goes by priority"


def test_fork_waits_for_the_blocks_that_its_children_will_copy():
    driver = build_driver(num_blocks=4, block_size=4, max_model_len=12)
    driver.add(build_request(1, [1] * 2, max_tokens=2), build_request(2, [2] * 6, n=3, max_tokens=2))
    assert len(driver.step().rows) == 1
    driver.run()
    assert driver.engine.stats.num_preemptions == 0
    driver.check_complete(2)


def test_one_step_ahead_sends_a_decode_before_the_last_token_is_known():
    driver = build_driver(is_async=True)
    driver.add(build_request(1, range(4), max_tokens=3))
    assert driver.send() is not None
    ahead = driver.send()
    assert (ahead.rows[0].num_computed_tokens, ahead.rows[0].num_scheduled_tokens) == (4, 1)
    assert not driver.engine.can_schedule(), "two steps are in flight"
    driver.run()
    driver.check_complete(1)


def test_one_step_ahead_does_not_run_past_a_length_limit():
    driver = build_driver(is_async=True)
    driver.add(build_request(1, range(4), max_tokens=2))
    driver.send()
    driver.send()
    driver.receive()
    assert driver.send() is None, "the step in flight draws the last token"
    driver.receive()
    assert driver[1].children[0].finish_reason is FinishReason.LENGTH
    assert len(driver.steps) == 2


def test_one_step_ahead_waits_for_a_fork():
    driver = build_driver(is_async=True)
    driver.add(build_request(1, range(6), n=2))
    assert driver.send().rows[0].num_draws == 2
    assert driver.send() is None
    driver.receive()
    assert len(driver.send().rows) == 2


def test_stop_is_found_one_step_late_and_the_surplus_is_dropped():
    driver = build_driver(is_async=True, vocab_size=8)
    driver.add(build_request(1, [5, 5], max_tokens=40, eos=[0]))
    driver.run()
    driver.check_complete(1)
    transcript = driver[1].children[0]
    assert transcript.finish_reason is FinishReason.STOP
    assert driver.executor.num_computed_tokens == 2 + len(transcript.token_ids), "one surplus token was computed"


def test_tokens_in_flight_of_a_preempted_request_are_committed_before_it_resumes():
    driver = build_driver(num_blocks=5, block_size=4, max_model_len=16, is_async=True, caching=False)
    driver.add(build_request(1, [1] * 7, max_tokens=8), build_request(2, [2] * 7, max_tokens=8))
    preempted_in_flight = False
    while driver.engine.has_work():
        before = driver.engine.stats.num_preemptions
        while driver.send() is not None:
            if driver.engine.stats.num_preemptions > before and len(driver.results) == 2:
                preempted_in_flight = True
        driver.receive()
    assert preempted_in_flight
    driver.check_ended()
    driver.check_complete(1)
    driver.check_complete(2)


def test_preempted_request_that_finishes_with_its_late_token_does_not_come_back():
    driver = build_driver(num_blocks=5, block_size=4, max_model_len=16, is_async=True, caching=False)
    driver.add(build_request(1, [1] * 7, max_tokens=8), build_request(2, [2] * 8, max_tokens=2))
    driver.run()
    driver.check_complete(2)
    assert len([row for step in driver.steps for row in step.new_rows]) == 2


def test_nothing_to_schedule_is_said_once_until_something_happens():
    driver = build_driver(is_async=True)
    driver.add(build_request(1, range(4), max_tokens=1))
    driver.send()
    assert driver.send() is None
    assert not driver.engine.can_schedule()
    driver.add(build_request(2, range(4)))
    assert driver.engine.can_schedule()


@pytest.mark.parametrize("is_async", [False, True])
def test_all_children_may_be_preempted_while_their_fork_is_in_flight(is_async):
    driver = build_driver(num_blocks=6, block_size=2, max_model_len=10, is_async=is_async, caching=False)
    driver.add(build_request(1, [1, 1, 1], max_tokens=7), build_request(2, [2, 2, 2, 2], n=3, max_tokens=5))
    driver.run()
    assert driver[2].end.num_preemptions > 0
    driver.check_complete(1)
    driver.check_complete(2)
