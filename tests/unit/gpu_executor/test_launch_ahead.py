"""A step is launched while the device is at the one before, and no bit of any answer shows it."""

from __future__ import annotations

import pytest

from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, ScheduledRow
from tests.support.launching_ahead import AheadDriver, AheadRunner, DeferredModel
from tests.support.runner import Row, RunnerDriver, make_runner
from tests.support.tiny_model import tiny_checkpoint

GREEDY = Sampling(temperature=0.0, num_logprobs=3)
SEEDED = Sampling(temperature=1.0, seed=42, num_logprobs=3)
PENALIZED = Sampling(temperature=0.8, seed=-1, top_p=0.9, repetition_penalty=1.2, num_logprobs=0)
READING = Sampling(temperature=0.8, seed=-1, top_p=0.9, bad_words_token_ids=[[5, 6], [9]], repetition_penalty=1.2)
NOTHING_LEFT = Sampling(allowed_token_ids=[5], end_token_ids=[5], min_tokens=1)
NUM_TOKENS = 6


def make_row(row_id, sampling, *, prompt=(5, 6, 7, 8, 9, 10), first_block=0):
    return Row(row_id, list(prompt), sampling, block_table=[first_block + i for i in (3, 1, 4, 0, 2)])


def report_alone(sampling, num_tokens=NUM_TOKENS, **options):
    row = make_row(1, sampling, **options)
    RunnerDriver(make_runner(tiny_checkpoint())).run([row], num_tokens=num_tokens)
    return row.report


@pytest.fixture
def driver():
    return AheadDriver(AheadRunner(tiny_checkpoint()))


def begin(driver, *rows):
    """Compute the prompts and wait for the first token of each row."""
    driver.launch([(row, len(row.prompt)) for row in rows])
    driver.finish()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_tokens_that_the_host_does_not_know_yet_are_taken_from_the_device(driver, depth):
    kinds = (GREEDY, SEEDED, READING, PENALIZED)
    rows = [make_row(i + 1, sampling, first_block=10 * i) for i, sampling in enumerate(kinds)]
    begin(driver, *rows)
    driver.decode(rows, num_tokens=NUM_TOKENS - 1, depth=depth)
    assert [row.report for row in rows] == [report_alone(sampling) for sampling in kinds]


def test_launches_do_not_wait_for_the_device(driver):
    rows = [make_row(1, GREEDY), make_row(2, SEEDED, first_block=10)]
    begin(driver, *rows)
    num_forwards, num_waits = driver.device.done.count("forward"), driver.device.num_waits
    first = driver.launch([(row, 1) for row in rows])
    second = driver.launch([(row, 1) for row in rows])
    assert driver.device.num_waits == num_waits
    assert driver.device.done.count("forward") == num_forwards
    assert not first.is_done()
    first.wait()
    assert (first.is_done(), second.is_done()) == (True, False)


def test_penalties_do_not_wait_for_the_tokens_that_they_are_about(driver):
    row, other = make_row(1, PENALIZED), make_row(2, SEEDED, first_block=10)
    begin(driver, row, other)
    num_waits = driver.device.num_waits
    for _ in range(3):
        driver.launch([(row, 1), (other, 1)])
    assert driver.device.num_waits == num_waits
    for _ in range(3):
        driver.finish()
    driver.decode([row, other], num_tokens=NUM_TOKENS - 4)
    assert row.report == report_alone(PENALIZED)


def test_penalized_row_that_comes_late_and_is_preempted_finds_all_its_tokens(driver):
    other = make_row(2, SEEDED, first_block=10)
    begin(driver, other)
    row = make_row(1, PENALIZED)
    driver.launch([(other, 1), (row, 4)])
    driver.launch([(row, 2), (other, 1)])
    driver.launch([(other, 1), (row, 1)])
    driver.launch([(other, 1)], removed_row_ids=[row.row_id])
    while driver.in_flight:
        driver.finish()
    resumed = Row(3, row.prompt, PENALIZED, block_table=[30, 33, 31, 36], tokens=row.tokens, results=row.results)
    driver.launch([(resumed, len(resumed.prompt) + len(resumed.tokens)), (other, 1)])
    driver.finish()
    driver.decode([other, resumed], num_tokens=NUM_TOKENS - 3)
    assert resumed.report == report_alone(PENALIZED)


def test_steps_without_draws_do_not_wait_either(driver):
    row = make_row(1, GREEDY, prompt=range(3, 15))
    for num_tokens in (4, 4, 4):
        driver.launch([(row, num_tokens)])
    assert driver.device.num_waits == 0
    while driver.in_flight:
        driver.finish()
    assert row.report == report_alone(GREEDY, num_tokens=1, prompt=range(3, 15))


def test_row_that_reads_its_tokens_waits_for_the_last_one_behind_its_own_forward(driver):
    row, other = make_row(1, READING), make_row(2, SEEDED, first_block=10)
    begin(driver, row, other)
    driver.launch([(row, 1), (other, 1)])
    num_forwards, num_waits = driver.device.done.count("forward"), driver.device.num_waits
    driver.launch([(row, 1), (other, 1)])
    assert driver.device.num_waits == num_waits + 1, "for the first step's draws"
    assert driver.device.done.count("forward") == num_forwards + 1, "the second's forward was not waited for"
    driver.finish()
    driver.finish()
    assert row.report == report_alone(READING, num_tokens=3)


def test_result_of_a_removed_row_is_told_and_leaves_the_row_that_took_its_place_alone(driver):
    gone, kept = make_row(1, GREEDY), make_row(2, SEEDED, first_block=10)
    begin(driver, gone, kept)
    driver.launch([(gone, 1), (kept, 1)])
    # The newcomer gets the place of the removed row, its blocks and its last token's place on the device. Where the
    # removed row's token would have gone, it has one of its prompt, which is computed after that token is known.
    newcomer = make_row(3, READING, prompt=range(20, 31))
    driver.launch([(newcomer, 6), (kept, 1)], removed_row_ids=[gone.row_id])
    driver.finish()
    driver.launch([(newcomer, 5), (kept, 1)])
    driver.finish()
    driver.finish()
    driver.decode([newcomer, kept], num_tokens=NUM_TOKENS - 1)
    assert gone.report == report_alone(GREEDY, num_tokens=2)
    assert newcomer.report == report_alone(READING, prompt=range(20, 31))
    assert kept.report == report_alone(SEEDED, num_tokens=NUM_TOKENS + 3)


def test_preempted_row_resumes_with_the_tokens_of_the_step_that_was_in_flight(driver):
    row, other = make_row(1, SEEDED), make_row(2, GREEDY, first_block=10)
    begin(driver, row, other)
    driver.launch([(row, 1), (other, 1)])
    driver.launch([(other, 1)], removed_row_ids=[row.row_id])
    driver.finish()
    resumed = Row(3, row.prompt, SEEDED, block_table=[30, 33, 31, 36], tokens=row.tokens, results=row.results)
    driver.launch([(resumed, len(resumed.prompt) + len(resumed.tokens)), (other, 1)])
    driver.finish()
    driver.finish()
    driver.decode([resumed, other], num_tokens=NUM_TOKENS - 3)
    assert resumed.report == report_alone(SEEDED)
    assert other.report == report_alone(GREEDY, num_tokens=NUM_TOKENS + 1)


def test_row_that_came_back_under_its_id_is_not_given_the_token_of_its_former_self(driver):
    row = make_row(1, SEEDED)
    begin(driver, row)
    driver.launch([(row, 1)])
    again = make_row(1, GREEDY, first_block=10)
    driver.launch([(again, 6)], removed_row_ids=[1])
    driver.finish()
    driver.finish()
    driver.decode([again], num_tokens=2)
    assert row.report == report_alone(SEEDED, num_tokens=2)
    assert again.report == report_alone(GREEDY, num_tokens=3)


def test_failed_draw_ends_its_row_alone_and_every_step_that_was_launched_ahead_of_it(driver):
    bad, good = make_row(1, NOTHING_LEFT), make_row(2, SEEDED, first_block=10)
    driver.launch([(bad, 6), (good, 6)])
    driver.launch([(bad, 1), (good, 1)])
    first, second = driver.finish(), driver.finish()
    assert [of_row.row_id for of_row in first.rows] == [of_row.row_id for of_row in second.rows] == [1, 2]
    assert first.rows[0].error.kind == "InvalidRequest"
    assert "failed in an earlier step" in second.rows[0].error.message
    driver.launch([(good, 1)], removed_row_ids=[1])
    driver.finish()
    assert good.report == report_alone(SEEDED, num_tokens=3)


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_step_computes_the_same_rows_whether_or_not_the_host_has_seen_a_draw_fail(driver, is_seen, monkeypatch):
    # Ranks that share layers see it at different times, and must exchange the same number of rows.
    bad, good = make_row(1, NOTHING_LEFT), make_row(2, SEEDED, first_block=10)
    forward, num_tokens = DeferredModel.forward, []

    def counting(model, input_ids, *args):
        num_tokens.append(len(input_ids))
        return forward(model, input_ids, *args)

    monkeypatch.setattr(DeferredModel, "forward", counting)
    first = driver.launch([(bad, 6), (good, 6)])
    if is_seen:
        first.finish()
    sent_ahead = ExecuteStep(executor_epoch=1, step_id=2, rows=[ScheduledRow(1, 6, 1), ScheduledRow(2, 6, 1)])
    second = driver.runner.launch(sent_ahead)
    failed, first_of_good = first.finish().rows
    ahead_of_failure, second_of_good = second.finish().rows
    assert num_tokens == [12, 2]
    assert failed.error.kind == "InvalidRequest"
    assert "failed in an earlier step" in ahead_of_failure.error.message
    assert first_of_good.token_ids + second_of_good.token_ids == report_alone(SEEDED, num_tokens=2)[0]


def test_row_that_fails_its_checks_fails_alone_while_a_step_is_in_flight(driver):
    bad, good = make_row(1, GREEDY, prompt=[10**6]), make_row(2, SEEDED, first_block=10)
    begin(driver, good)
    driver.launch([(good, 1)])
    driver.launch([(bad, 1), (good, 1)])
    driver.finish()
    assert driver.finish().rows[0].error.kind == "InvalidRequest"
    assert good.report == report_alone(SEEDED, num_tokens=3)


def test_prompt_ends_with_a_draw_for_each_child(driver):
    row = make_row(1, SEEDED)
    driver.launch([(row, 6)], num_draws=3)
    driver.launch([(row, 1)])
    forked = driver.finish().rows[0]
    driver.finish()
    alone = []
    for child in range(3):
        solo = make_row(1, SEEDED)
        solo.child = child
        RunnerDriver(make_runner(tiny_checkpoint())).run([solo], num_tokens=1)
        alone += solo.tokens
    assert forked.token_ids == alone
    assert row.tokens == report_alone(SEEDED, num_tokens=2)[0]


def test_blocks_are_copied_between_the_writes_of_the_steps_around_the_copy(driver):
    row = make_row(1, SEEDED)  # six tokens: one block full, one half
    begin(driver, row)
    driver.launch([(row, 1)])
    # The token of the step in flight is in the copy; what is written from here on is not in the source.
    step = ExecuteStep(
        executor_epoch=1, step_id=9, block_copies=[(1, 50)], rows=[ScheduledRow(1, 7, 1, 1, [], (1, 50))]
    )
    ahead = driver.runner.launch(step)
    driver.finish()
    assert row.tokens + ahead.finish().rows[0].token_ids == report_alone(SEEDED, num_tokens=3)[0]
    assert driver.runner.runner.batch.block_table_of(1)[:3] == [3, 50, 4]


def test_prompt_logprobs_are_those_of_a_runner_that_waits(driver):
    sampling = Sampling(temperature=0.0, num_prompt_logprobs=2, num_logprobs=1)
    row, other = make_row(1, sampling), make_row(2, SEEDED, first_block=10)
    begin(driver, other)
    driver.launch([(other, 1)])
    driver.launch([(row, 6), (other, 1)])
    driver.finish()
    driver.finish()
    assert row.report == report_alone(sampling, num_tokens=1)


def test_step_without_rows_is_done_at_once(driver):
    row = make_row(1, GREEDY)
    begin(driver, row)
    done = driver.runner.launch(ExecuteStep(executor_epoch=1, step_id=2, removed_row_ids=[1]))
    assert done.is_done()
    assert done.finish().rows == []
    assert driver.runner.runner.batch.row_ids == []


def test_device_time_is_the_devices_and_a_gap_what_it_waited_for_a_launch(driver):
    row = make_row(1, GREEDY)
    driver.device.host_s = 10.0  # a forward takes a second, from its launch on
    begin(driver, row)
    first = row.results[-1:]  # nothing was held before: that the device idled is nobody's fault
    driver.launch([(row, 1)])  # late by nothing: at 10 the device is at the prompt still
    driver.launch([(row, 1)])
    ahead = [driver.finish(), driver.finish()]
    driver.device.host_s = 15.5  # the device was done at 13
    driver.launch([(row, 1)])
    late = driver.finish()
    assert first[0].error is None
    assert [(result.device_s, result.host_gap_s) for result in ahead] == [(1.0, 0.0), (1.0, 0.0)]
    assert (late.device_s, late.host_gap_s, late.step_s) == (1.0, 2.5, 3.5)


def test_time_without_rows_is_no_gap(driver):
    first, second = make_row(1, GREEDY), make_row(2, GREEDY)
    begin(driver, first)
    driver.device.host_s = 100.0
    driver.launch([(second, 6)], removed_row_ids=[1])
    result = driver.finish()
    assert (result.device_s, result.host_gap_s) == (1.0, 0.0)


def test_other_work_between_two_steps_is_no_gap(driver):
    row = make_row(1, GREEDY)
    begin(driver, row)
    driver.device.host_s = 100.0
    driver.runner.runner.forget_last_step()
    driver.launch([(row, 1)])
    assert driver.finish().host_gap_s == 0.0
