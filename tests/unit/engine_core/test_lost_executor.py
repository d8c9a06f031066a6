"""An executor's end costs its requests time and nothing else; one that ends executors fails alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.ipc.errors import ProtocolError
from pagewire.ipc.outputs import FinishReason
from pagewire.ipc.requests import AbortRequests, CallUtility
from pagewire.ipc.steps import StepResult
from tests.support.builders import build_driver, build_request
from tests.support.engine_driver import ALICE, EngineDriver
from tests.support.fake_executor import FakeExecutor

BLOCKS, BLOCK_SIZE, VOCAB = 64, 4, 1000


def fresh_executor() -> FakeExecutor:
    return FakeExecutor(num_blocks=BLOCKS, block_size=BLOCK_SIZE, vocab_size=VOCAB)


def restart(driver: EngineDriver, epoch: int = 2) -> None:
    driver.restart_executor(fresh_executor(), epoch)


def rows_of_next_step(driver: EngineDriver) -> set[int]:
    """The requests of the next step, as the executor would see them."""
    step = driver.send()
    assert step is not None
    tables = driver.block_tables()
    running = {table["request_id"] for table in tables if table["status"] == "running"}
    assert len(step.rows) <= len(tables)
    return running


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("num_steps", range(8))
def test_running_requests_go_on_with_the_tokens_that_they_would_have_had(num_steps: int, is_async: bool):
    driver = build_driver(is_async=is_async, budget=16)
    driver.add(
        build_request(1, range(30), max_tokens=6),
        build_request(2, range(5), n=3, max_tokens=4, logprobs=1),
        build_request(3, range(40, 60), max_tokens=3, prompt_logprobs=1),
    )
    for _ in range(num_steps):
        driver.send()
        if len(driver.results) > is_async:
            driver.receive()
    restart(driver)
    driver.run()
    for request_id in (1, 2, 3):
        driver.check_complete(request_id)
        assert driver[request_id].end.num_preemptions == 0


def test_nothing_is_scheduled_until_the_next_executor_is_there():
    driver = build_driver(is_async=True)
    driver.add(build_request(1, range(9)))
    driver.send()
    driver.engine.lose_executor("it was killed")
    driver.results.clear()
    driver.add(build_request(2, range(9)))
    driver.engine.check_invariants()
    stats = driver.engine.stats
    assert (stats.is_serving, stats.num_executor_restarts) == (False, 1)
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 2, 0)
    assert driver.engine.has_work()
    assert not driver.engine.can_schedule()
    assert driver.engine.schedule(1.0) is None
    driver.executor = fresh_executor()
    driver.engine.resume(2)
    assert driver.engine.stats.is_serving
    step = driver.send()
    assert step.executor_epoch == 2
    assert step.removed_row_ids == []
    driver.run()
    driver.check_complete(1)
    driver.check_complete(2)


def test_lost_executors_cache_is_forgotten():
    driver = build_driver()
    driver.add(build_request(1, range(20)))
    driver.run()
    call = CallUtility(call_id=1, method="pool")
    assert driver.engine.call_utility(ALICE, call).result["num_cached_blocks"] > 0
    restart(driver)
    assert driver.engine.call_utility(ALICE, call).result["num_cached_blocks"] == 0
    driver.add(build_request(2, range(20)))
    driver.run()
    assert driver[2].start.num_cached_tokens == 0


def test_requests_end_while_there_is_no_executor():
    driver = build_driver()
    driver.add(build_request(1, range(9), n=2), build_request(2, range(9)))
    driver.step()
    driver.engine.lose_executor("it was killed")
    driver.abort(2)
    driver.abort(children=[(1, 0)])
    driver.engine.check_invariants()
    assert driver[2].end.error is None
    driver.executor = fresh_executor()
    driver.engine.resume(2)
    driver.run()
    assert driver[1].children[0].finish_reason is FinishReason.STOP
    assert driver[1].children[1].finish_reason is FinishReason.LENGTH


def test_second_loss_before_the_first_is_made_good_changes_nothing_more():
    driver = build_driver()
    driver.add(build_request(1, range(9)))
    driver.step()
    driver.engine.lose_executor("it was killed")
    driver.engine.lose_executor("it was killed while it loaded")
    restart(driver, 4)
    assert driver.engine.stats.num_executor_restarts == 3
    driver.run()
    driver.check_complete(1)


def test_late_result_of_the_lost_executor_is_dropped():
    driver = build_driver()
    driver.add(build_request(1, range(9)))
    driver.send()
    late = driver.results[0]
    restart(driver)
    driver.engine.apply(late, 5.0)
    driver.run()
    driver.check_complete(1)


def test_executor_that_leaves_out_a_row_is_lost_like_any_other():
    driver = build_driver(is_async=True)
    driver.add(build_request(1, range(9)), build_request(2, range(20, 30)), build_request(3, range(40, 50)))
    driver.send()
    driver.send()
    whole = driver.results.popleft()
    torn = StepResult(executor_epoch=whole.executor_epoch, step_id=whole.step_id, rows=whole.rows[:1])
    with pytest.raises(ProtocolError):
        driver.engine.apply(torn, 1.0)
    restart(driver)
    driver.run()
    for request_id in (1, 2, 3):
        driver.check_complete(request_id)


@pytest.mark.parametrize("is_async", [False, True])
def test_suspects_run_alone_each_until_it_has_a_token(is_async: bool):
    driver = build_driver(is_async=is_async)
    driver.add(*(build_request(i, range(10 * i, 10 * i + 6), max_tokens=8) for i in (1, 2)))
    for epoch in (2, 3):
        assert rows_of_next_step(driver) == {1, 2}
        restart(driver, epoch)
    driver.add(build_request(3, range(5)))
    assert rows_of_next_step(driver) == {1}
    driver.receive()
    assert rows_of_next_step(driver) == {2}
    while driver.results:
        driver.receive()
    assert rows_of_next_step(driver) == {1, 2, 3}
    driver.run()
    for request_id in (1, 2, 3):
        driver.check_complete(request_id)


def test_token_between_two_deaths_spares_the_isolation():
    driver = build_driver()
    driver.add(build_request(1, range(6), max_tokens=8), build_request(2, range(20, 26), max_tokens=8))
    for epoch in (2, 3, 4, 5):
        driver.step()
        driver.send()
        restart(driver, epoch)
    assert rows_of_next_step(driver) == {1, 2}


@pytest.mark.parametrize("is_async", [False, True])
def test_request_that_ends_executors_fails_alone(is_async: bool):
    driver = build_driver(is_async=is_async)
    driver.add(*(build_request(i, range(10 * i, 10 * i + 6), max_tokens=8) for i in (1, 2, 3)))
    num_deaths = run_with_poison(driver, {2})
    assert num_deaths == 4
    error = driver[2].end.error
    assert error.kind == "PoisonRequest"
    assert "it was killed" in error.message
    driver.check_complete(1)
    driver.check_complete(3)
    assert driver.engine.stats.num_executor_restarts == 4


def test_conviction_is_told_as_the_next_executor_may_do_better():
    driver = build_driver()
    driver.add(build_request(1, range(6)), build_request(2, range(20, 26)))
    told = []
    for epoch in range(2, 12):
        if driver.send() is None:
            break
        driver.results.clear()
        told.append(driver.engine.lose_executor("it was killed", was_killed=True))
        driver.collect()
        driver.engine.resume(epoch)
    # Both are suspects after two deaths, and are proven to be the cause by three each.
    assert told == [False, False, False, False, True, False, False, True]


@pytest.mark.parametrize("is_async", [False, True])
def test_each_request_is_told_once_to_be_in_a_step_and_before_its_result(is_async: bool):
    driver = build_driver(is_async=is_async, budget=8, max_num_seqs=2)
    driver.add(*(build_request(i, range(10 * i, 10 * i + 6), max_tokens=3) for i in (1, 2, 3)))
    driver.send()
    assert [driver[i].is_scheduled for i in (1, 2, 3)] == [True, True, False], "the third one waits"
    restart(driver)  # the core is the same: it has told of them
    driver.run()
    assert all(driver[i].is_scheduled for i in (1, 2, 3))


def test_resumed_request_is_told_to_be_in_a_step_as_well():
    driver = build_driver()
    driver.add(build_request(1, range(6), max_tokens=5))
    driver.step()
    driver.restart_core(build_driver())
    assert not driver[1].is_scheduled
    driver.send()
    assert driver[1].is_scheduled


def test_suspect_of_dead_cores_runs_alone_from_the_start():
    driver = build_driver(is_async=True)
    driver.add(build_request(1, range(6), max_tokens=8))
    driver.step()
    suspect = build_request(2, range(20, 26), max_tokens=8, is_readded=True, num_deaths=2)
    driver.add(suspect)
    driver.add(build_request(3, range(30, 36), max_tokens=8, is_readded=True, num_deaths=1))
    assert rows_of_next_step(driver) == {2}
    driver.run()
    for request_id in (1, 2, 3):
        driver.check_complete(request_id)
    assert driver[1].end.num_preemptions == 0


def test_end_of_a_suspect_ends_its_isolation():
    driver = build_driver()
    driver.add(build_request(1, range(6)), build_request(2, range(20, 26)))
    for epoch in (2, 3):
        driver.send()
        restart(driver, epoch)
    assert rows_of_next_step(driver) == {1}
    driver.engine.abort(ALICE, AbortRequests(request_ids=[1]), 1.0)
    driver.collect()
    driver.receive()
    assert rows_of_next_step(driver) == {2}
    driver.run()
    driver.check_complete(2)


def run_with_poison(driver: EngineDriver, poison: set[int]) -> int:
    """Run to the end; a step with a row of a poison request ends the executor before it answers."""
    num_deaths = 0
    prompts = {tuple(driver[request_id].request.inputs.prompt_token_ids) for request_id in poison}
    while driver.engine.has_work():
        step = driver.send()
        if step is not None and any(tuple(row.token_ids[: row.num_prompt_tokens]) in prompts for row in step.new_rows):
            driver.results.pop()
            while driver.results and driver.engine.stats.num_steps % 2:
                driver.receive()
            num_deaths += 1
            restart(driver, num_deaths + 1)
        elif step is None:
            driver.receive()
    driver.check_ended()
    return num_deaths


@given(
    seed=st.integers(0, 2**16),
    is_async=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
    budget=st.sampled_from([4, 16, 64]),
)
@settings(derandomize=True, max_examples=40, deadline=None)
def test_whoever_else_is_there_gets_its_solo_answer(seed: int, is_async: bool, policy: str, budget: int):
    rng = random.Random(seed)
    driver = build_driver(is_async=is_async, policy=policy, budget=budget, max_num_seqs=rng.randint(2, 8))
    num_requests = rng.randint(1, 9)
    for request_id in range(1, num_requests + 1):
        driver.add(
            build_request(
                request_id,
                [*rng.choices(range(3), k=rng.randint(1, 8)), 100 + request_id],
                n=rng.choice([1, 1, 2]),
                max_tokens=rng.randint(1, 8),
                priority=rng.randint(-1, 1) if policy == "priority" else 0,
                num_deaths=rng.choice([0, 0, 1, 2]),
            )
        )
    poison = set(rng.sample(range(1, num_requests + 1), k=min(num_requests, rng.randint(0, 3))))
    run_with_poison(driver, poison)
    for request_id in range(1, num_requests + 1):
        if request_id in poison:
            assert driver[request_id].end.error.kind == "PoisonRequest"
        else:
            driver.check_complete(request_id)
