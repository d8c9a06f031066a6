"""Drafts are checked on a device that is at other steps still, and no bit of any answer shows it."""

from __future__ import annotations

import pytest

from pagewire.gpu_executor.speculation.prompt_lookup import PromptLookup
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, ScheduledRow
from tests.support.launching_ahead import AheadDriver, AheadRunner
from tests.support.runner import Row, RunnerDriver, make_runner
from tests.support.tiny_model import tiny_checkpoint

GREEDY = Sampling(temperature=0.0, num_logprobs=3)
SEEDED = Sampling(temperature=1.0, seed=42, num_logprobs=3)
PENALIZED = Sampling(temperature=0.8, seed=-1, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.5, num_logprobs=0)
READING = Sampling(temperature=0.8, seed=-1, top_p=0.9, bad_words_token_ids=[[5, 6], [9]], repetition_penalty=1.2)
FORCED = Sampling(temperature=1.0, seed=3, min_tokens=5, end_token_ids=[7, 8], logit_bias={9: 4.0}, num_logprobs=1)
KINDS = [GREEDY, SEEDED, PENALIZED, READING, FORCED]
WRONG = 3
NUM_TOKENS = 10


def make_row(row_id, sampling, *, first_block=0):
    return Row(row_id, [5, 6, 7, 8, 9, 10], sampling, block_table=[first_block + i for i in (3, 1, 4, 0, 2, 5, 6, 7)])


def report_alone(sampling, num_tokens=NUM_TOKENS):
    row = make_row(1, sampling)
    RunnerDriver(make_runner(tiny_checkpoint())).run([row], num_tokens=num_tokens)
    return row.report


def up_to(num_tokens, report):
    return tuple(part[:num_tokens] for part in report)


@pytest.fixture
def driver():
    return AheadDriver(AheadRunner(tiny_checkpoint()))


def begin(driver, *rows):
    """Compute the prompts and wait for the first token of each row."""
    driver.launch([(row, len(row.prompt)) for row in rows])
    driver.finish()


def finish_all(driver):
    while driver.in_flight:
        driver.finish()


@pytest.mark.parametrize("sampling", KINDS, ids=["greedy", "seeded", "penalized", "reading", "forced"])
@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_checked_drafts_are_plain_decodes_beside_rows_that_run_ahead(driver, sampling, num_right):
    expected, of_other = report_alone(sampling, NUM_TOKENS + 2), report_alone(PENALIZED, 2 * NUM_TOKENS)
    row, other = make_row(1, sampling), make_row(2, PENALIZED, first_block=16)
    begin(driver, row, other)
    while len(row.tokens) < NUM_TOKENS - 3:
        done = len(row.tokens)
        drafts = [*expected[0][done : done + num_right], WRONG, WRONG, WRONG][:3]
        driver.launch([(other, 1)])
        driver.launch([(row, 1), (other, 1)], drafts={1: drafts})
        if len(other.tokens) < 8:
            driver.launch([(other, 1)])
        finish_all(driver)
        assert len(row.tokens) > done
        if num_right == 3:
            assert len(row.tokens) == done + 4
        driver.launch([(row, 1)])  # and a plain step after it
        finish_all(driver)
    assert row.report == up_to(len(row.tokens), expected)
    assert other.report == up_to(len(other.tokens), of_other)


def test_a_step_with_drafts_is_launched_without_a_wait(driver):
    row, other = make_row(1, PENALIZED), make_row(2, SEEDED, first_block=16)
    begin(driver, row, other)
    num_waits = driver.device.num_waits
    driver.launch([(other, 1)])
    checking = driver.launch([(row, 1), (other, 1)], drafts={1: [4, 5]})
    driver.launch([(other, 1)])
    assert driver.device.num_waits == num_waits
    assert not checking.is_done()


def test_a_rank_that_has_not_seen_a_check_waits_for_it_before_the_rows_next_step(driver):
    # The core has the result of another rank, and schedules the row again.
    expected = report_alone(SEEDED)[0]
    row = make_row(1, SEEDED)
    begin(driver, row)
    first = driver.launch([(row, 1)], drafts={1: expected[1:3]})
    step = ExecuteStep(executor_epoch=1, step_id=9, rows=[ScheduledRow(1, 9, 1)])
    second = driver.runner.launch(step)
    assert [of_row.token_ids for of_row in first.finish().rows] == [expected[1:4]]
    assert [of_row.token_ids for of_row in second.finish().rows] == [expected[4:5]]


def test_guesses_follow_the_tokens_of_their_step_and_not_what_was_launched_since():
    proposer = PromptLookup(4, longest=3, shortest=1)
    driver = AheadDriver(AheadRunner(tiny_checkpoint(), proposer=proposer))
    biased = Sampling(temperature=0.0, logit_bias={5: 100.0})
    row = make_row(1, biased)
    driver.launch([(row, 6)])
    driver.launch([(row, 1)])
    finish_all(driver)
    assert row.tokens == [5, 5]
    assert [result.next_draft_ids for result in row.results] == [[6, 7, 8, 9], [5, 5, 5, 5]]


def test_a_row_that_was_removed_meanwhile_gets_its_result_and_no_guesses():
    proposer = PromptLookup(4, longest=3, shortest=1)
    driver = AheadDriver(AheadRunner(tiny_checkpoint(), proposer=proposer))
    expected = report_alone(GREEDY)[0]
    row, other = make_row(1, GREEDY), make_row(2, SEEDED, first_block=16)
    begin(driver, row)
    driver.launch([(row, 1)], drafts={1: expected[1:3]})
    driver.launch([(other, 6)], removed_row_ids=[1])
    finish_all(driver)
    driver.decode([other], num_tokens=2)
    assert row.tokens == expected[:4]
    assert row.results[-1].next_draft_ids == []
    assert other.report == report_alone(SEEDED, 3)


def test_a_draft_behind_which_nothing_can_be_drawn_fails_no_row_before_its_place(driver):
    # The first draw may be 5 alone; behind a 5, nothing may.
    sampling = Sampling(temperature=0.0, allowed_token_ids=[5], bad_words_token_ids=[[5, 5]])
    row, other = make_row(1, sampling), make_row(2, SEEDED, first_block=16)
    row.prompt[-1] = 10
    begin(driver, other)
    driver.launch([(row, 6)])
    driver.finish()
    assert row.tokens == [5]
    driver.launch([(row, 1), (other, 1)], drafts={1: [5]})
    result = driver.finish()
    assert result.rows[0].error.kind == "InvalidRequest"
    assert other.report == report_alone(SEEDED, 2)


@pytest.mark.parametrize("drafts", [[512], [-1]])
def test_a_draft_outside_of_the_vocabulary_fails_its_row_alone(driver, drafts):
    row, other = make_row(1, GREEDY), make_row(2, SEEDED, first_block=16)
    begin(driver, row, other)
    driver.launch([(other, 1)])
    driver.launch([(row, 1), (other, 1)], drafts={1: drafts})
    driver.finish()
    assert driver.finish().rows[0].error.param == "draft_token_ids"
    assert other.report == report_alone(SEEDED, 3)
