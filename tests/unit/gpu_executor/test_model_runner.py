"""What a row gets (tokens, and the bits of their logprobs) depends on that row alone."""

from __future__ import annotations

import math
import shutil

import pytest
from safetensors.torch import load_file, save_file

from pagewire.checkpoint.loading import load_model_config
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, NewRow, ScheduledRow
from tests.support.runner import BLOCK_SIZE, Row, RunnerDriver, make_runner
from tests.support.tiny_model import tiny_checkpoint

GREEDY = Sampling(temperature=0.0, num_logprobs=3, num_prompt_logprobs=2)
SEEDED = Sampling(temperature=1.0, seed=42, num_logprobs=3)
FILTERED = Sampling(temperature=0.8, seed=-1, top_p=0.9, repetition_penalty=1.2, num_logprobs=0)
PROMPTS = ([5, 6, 7, 8, 9, 10, 11, 12, 13], [100, 3, 77], [9] * 14)
NUM_TOKENS = 6


def make_rows():
    """Three rows in scattered blocks, none next to another of its own."""
    return [
        Row(row_id=i + 1, prompt=list(prompt), sampling=sampling, block_table=[40 - 3 * b - i for b in range(5)])
        for i, (prompt, sampling) in enumerate(zip(PROMPTS, (GREEDY, SEEDED, FILTERED), strict=True))
    ]


@pytest.fixture(scope="module")
def alone():
    """Each row's report, computed in one piece with nobody else in the pool."""
    reports = []
    for row in make_rows():
        RunnerDriver(make_runner(tiny_checkpoint())).run([row], num_tokens=NUM_TOKENS)
        reports.append(row.report)
    return reports


@pytest.fixture
def driver():
    return RunnerDriver(make_runner(tiny_checkpoint()))


def test_all_results_are_finite_and_complete(alone):
    for (tokens, logprobs, prompt_logprobs), prompt, sampling in zip(
        alone, PROMPTS, (GREEDY, SEEDED, FILTERED), strict=True
    ):
        assert len(tokens) == len(logprobs) == NUM_TOKENS
        assert all(math.isfinite(entry.logprob) for entry in logprobs)
        assert len(prompt_logprobs) == (len(prompt) - 1 if sampling.num_prompt_logprobs is not None else 0)


def test_batch_gives_the_bits_of_each_row_alone(driver, alone):
    rows = make_rows()
    driver.run(rows, num_tokens=NUM_TOKENS)
    assert [row.report for row in rows] == alone


@pytest.mark.parametrize("chunk", [1, 3, BLOCK_SIZE, 5])
def test_chunks_give_the_bits_of_one_piece(driver, alone, chunk):
    rows = make_rows()
    driver.run(rows[::-1], num_tokens=NUM_TOKENS, chunk=chunk)
    assert [row.report for row in rows] == alone


def test_rows_that_come_and_go_leave_the_others_bits_alone(driver, alone):
    first, second, third = make_rows()
    driver.step([(first, 9)])
    driver.step([(second, 3), (first, 1)])
    driver.step([(third, 7), (first, 1)])
    driver.step([(third, 7), (first, 1), (second, 1)])
    driver.run([second, first, third], num_tokens=NUM_TOKENS)
    assert [row.report for row in (first, second, third)] == alone


def test_preempted_row_resumes_with_the_same_bits(driver, alone):
    rows = make_rows()
    driver.run(rows, num_tokens=3)
    resumed = rows[1]
    before = resumed.results[:]
    resumed.is_held, resumed.num_computed, resumed.block_table = False, 0, [50, 51, 52]
    driver.step([(resumed, 4)], removed_row_ids=[resumed.row_id])
    driver.run(rows, num_tokens=NUM_TOKENS)
    assert resumed.report == alone[1]
    assert resumed.results[: len(before)] == before


def test_row_in_blocks_that_another_left_full_gets_the_same_bits(driver, alone):
    first, second, third = make_rows()
    driver.run([first, third], num_tokens=NUM_TOKENS)
    second.block_table = first.block_table
    driver.step([(second, 3)], removed_row_ids=[first.row_id])
    driver.run([second], num_tokens=NUM_TOKENS)
    assert second.report == alone[1]


def test_long_prompt_gives_the_bits_of_one_piece_in_any_chunks():
    reports = []
    for chunk in (200, 16, 64, 97):
        row = Row(
            row_id=1, prompt=[i % 300 + 3 for i in range(170)], sampling=SEEDED, block_table=list(range(63, 13, -1))
        )
        RunnerDriver(make_runner(tiny_checkpoint())).run([row], num_tokens=3, chunk=chunk)
        reports.append(row.report)
    assert reports == [reports[0]] * 4


def test_children_of_a_fork_share_blocks_and_copy_on_write(driver):
    prompt = [5, 6, 7, 8, 9, 10]  # one full block and a half
    driver.runner.execute(
        ExecuteStep(
            executor_epoch=1,
            step_id=1,
            new_rows=[
                NewRow(
                    row_id=1,
                    child=0,
                    token_ids=prompt,
                    num_prompt_tokens=6,
                    num_computed_tokens=0,
                    block_table=[7, 8],
                    sampling=SEEDED,
                )
            ],
        )
    )
    (forked,) = driver.runner.execute(ExecuteStep(executor_epoch=1, step_id=2, rows=[ScheduledRow(1, 0, 6, 3)])).rows
    assert len(forked.token_ids) == len(forked.logprobs) == 3
    children = [
        NewRow(
            row_id=1 + child,
            child=child,
            token_ids=[*prompt, forked.token_ids[child]],
            num_prompt_tokens=6,
            num_computed_tokens=6,
            block_table=[7, 20 + child],
            sampling=SEEDED,
        )
        for child in (1, 2)
    ]
    second = driver.runner.execute(
        ExecuteStep(
            executor_epoch=1,
            step_id=3,
            block_copies=[(8, 20), (8, 21), (8, 22)],
            new_rows=children,
            rows=[ScheduledRow(1, 6, 1, 1, [], (1, 20)), ScheduledRow(2, 6, 1), ScheduledRow(3, 6, 1)],
        )
    ).rows
    for child in range(3):
        solo = Row(row_id=1, prompt=prompt, sampling=SEEDED, block_table=[30, 31], child=child)
        RunnerDriver(make_runner(tiny_checkpoint())).run([solo], num_tokens=2)
        assert solo.report[0] == [forked.token_ids[child], second[child].token_ids[0]]
        assert solo.report[1] == [forked.logprobs[child], second[child].logprobs[0]]


def test_step_ahead_finds_the_token_of_the_step_before(driver, alone):
    (row, _, _) = make_rows()
    driver.step([(row, 9)])
    # The next steps are made without looking at any result.
    results = [
        driver.runner.execute(ExecuteStep(executor_epoch=1, step_id=2 + i, rows=[ScheduledRow(1, 9 + i, 1)])).rows[0]
        for i in range(NUM_TOKENS - 1)
    ]
    assert row.tokens + [result.token_ids[0] for result in results] == alone[0][0]


def test_chunk_that_does_not_reach_the_last_token_gives_no_result_of_a_plain_row(driver):
    (_, row, _) = make_rows()
    assert driver.step([(row, 2)]) == []


def test_prompt_logprobs_start_one_past_the_first_computed_position(driver):
    (row, _, _) = make_rows()
    starts = [driver.step([(row, 4)])[0].prompt_logprobs_start for _ in range(2)]
    assert starts == [1, 5]
    assert [len(result.prompt_logprobs) for result in row.results] == [4, 4]


@pytest.mark.parametrize(
    ("bad_row", "share", "kind"),
    [
        (Row(9, [512], GREEDY, [0]), 1, "InvalidRequest"),
        (Row(9, [-1], GREEDY, [0]), 1, "InvalidRequest"),
        (Row(9, [1], Sampling(end_token_ids=[10**9], min_tokens=1), [0]), 1, "InvalidRequest"),
        (Row(9, [1], Sampling(logit_bias={512: 1.0}), [0]), 1, "InvalidRequest"),
        (Row(9, [1], Sampling(allowed_token_ids=[-3]), [0]), 1, "InvalidRequest"),
        (Row(9, [1], Sampling(bad_words_token_ids=[[]]), [0]), 1, "InvalidRequest"),
        (Row(9, [1], Sampling(allowed_token_ids=[5], bad_words_token_ids=[[5]]), [0]), 1, "InvalidRequest"),
        (Row(9, [1], GREEDY, [64]), 1, "EngineError"),
        (Row(9, [1], GREEDY, []), 1, "EngineError"),
        (Row(9, [1], GREEDY, [0]), 2, "EngineError"),
        (Row(9, [1], GREEDY, [0], is_held=True), 1, "EngineError"),
    ],
)
def test_bad_row_fails_alone(driver, alone, bad_row, share, kind):
    good = make_rows()[1]
    bad_row.results.clear()
    results = driver.step([(bad_row, share), (good, 3)])
    assert [result.row_id for result in results] == [9, 2]
    assert results[0].error is not None
    assert (results[0].error.kind, results[0].token_ids) == (kind, [])
    driver.run([good], num_tokens=NUM_TOKENS)
    assert good.report == alone[1]


def test_removing_a_row_that_is_not_held_is_passed_over(driver):
    row = make_rows()[1]
    driver.step([(row, 3)], removed_row_ids=[77])
    driver.runner.execute(ExecuteStep(executor_epoch=1, step_id=2, removed_row_ids=[2, 2]))
    assert driver.runner.batch.row_ids == []


def test_unused_blocks_are_never_written(driver):
    rows = make_rows()
    driver.run(rows, num_tokens=NUM_TOKENS)
    used = {block for row in rows for block in row.block_table[: -(-row.num_computed // BLOCK_SIZE)]}
    for layer in driver.runner.kv_cache.layers:
        written = {block for block in range(layer.key.shape[0]) if not layer.key[block].isnan().all()}
        assert written == used


def run_alone(checkpoint, prompt, sampling, chunk=1000):
    row = Row(row_id=1, prompt=prompt, sampling=sampling, block_table=[9, 4, 7, 2])
    RunnerDriver(make_runner(checkpoint)).run([row], num_tokens=NUM_TOKENS, chunk=chunk)
    return row.report


def test_rows_of_the_embedding_beyond_the_tokenizer_are_never_drawn(tmp_path):
    plain = tiny_checkpoint()
    tokenizer_size = load_model_config(plain).tokenizer_size
    padded = shutil.copytree(plain, tmp_path / "padded")
    tensors = load_file(padded / "model.safetensors")
    assert tensors["lm_head.weight"].shape[0] > tokenizer_size
    tensors["lm_head.weight"][tokenizer_size:] *= 1000  # of either sign: some are by far the highest of every row
    save_file(tensors, padded / "model.safetensors")
    for sampling in (GREEDY, SEEDED):
        assert run_alone(padded, PROMPTS[0], sampling) == run_alone(plain, PROMPTS[0], sampling)


@pytest.mark.parametrize("chunk", [1000, 1, 2])
def test_penalties_see_prompt_or_output_from_the_first_token_on(chunk):
    checkpoint = tiny_checkpoint(tie_word_embeddings=True)  # likes to say the same again
    repeated = run_alone(checkpoint, [77, 77, 77], GREEDY)[0][0]
    prompt = [77, 77, 77, repeated]

    def drawn(**penalties):
        return run_alone(checkpoint, prompt, Sampling(temperature=0.0, **penalties), chunk)[0]

    plain = drawn()
    assert plain[0] == repeated
    assert repeated not in drawn(repetition_penalty=1e4), "the prompt counts"
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        assert drawn(**penalty)[0] == repeated, "the prompt does not count"
        assert drawn(**penalty) != plain, "the output does"
