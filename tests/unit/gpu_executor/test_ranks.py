"""Executors that share one model give the tokens of one that has it alone; here they are threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pagewire.ipc.mesh import Mesh
from pagewire.ipc.outputs import TokenLogprobs, UtilityResult
from pagewire.ipc.requests import CallUtility
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, NewRow, ScheduledRow
from tests.support.rank_driver import RankThreads, config_of, load_messages
from tests.support.runner import Row, RunnerDriver, make_runner
from tests.support.tiny_model import tiny_checkpoint

MESHES = [Mesh(tp=2), Mesh(pp=2), Mesh(pp=2, tp=2)]


@pytest.fixture(params=MESHES, ids=str)
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RankThreads]:
    config = config_of(tiny_checkpoint(), request.param)
    ranks = RankThreads(load_messages(config, tmp_path / "ranks"))
    yield ranks
    ranks.close()


def some_rows() -> list[Row]:
    return [
        Row(1, [5, 6, 7, 8, 9, 10], Sampling(temperature=0.0, num_logprobs=2, num_prompt_logprobs=1), [1, 2, 3]),
        Row(2, [9, 8], Sampling(temperature=1.0, seed=3, repetition_penalty=1.3), [4, 5]),
    ]


def all_logprobs(rows: list[Row]) -> list[TokenLogprobs]:
    return [entry for row in rows for result in row.results for entry in result.logprobs + result.prompt_logprobs]


def run_rows(driver: RunnerDriver, rows: list[Row], chunk: int = 4) -> list[list[int]]:
    driver.run(rows, num_tokens=5, chunk=chunk)
    return [row.tokens for row in rows]


def test_ranks_draw_the_tokens_of_one_executor(ranks: RankThreads) -> None:
    alone, together = some_rows(), some_rows()
    run_rows(RunnerDriver(make_runner(tiny_checkpoint())), alone)
    run_rows(RunnerDriver(ranks), together)  # type: ignore[arg-type]
    assert [row.tokens for row in together] == [row.tokens for row in alone]
    for expected, entry in zip(all_logprobs(alone), all_logprobs(together), strict=True):
        assert (entry.token_id, entry.rank) == (expected.token_id, expected.rank)
        assert entry.top_token_ids == expected.top_token_ids
        assert entry.logprob == pytest.approx(expected.logprob, abs=1e-3)


def test_drafts_are_checked_alike_on_all_ranks(ranks: RankThreads) -> None:
    alone, together = some_rows(), some_rows()
    run_rows(RunnerDriver(make_runner(tiny_checkpoint())), alone)
    driver = RunnerDriver(ranks)  # type: ignore[arg-type]
    driver.step([(row, len(row.prompt)) for row in together])
    while min(len(row.tokens) for row in together) < 4:
        # The first draft is right, the second one is for every other row.
        drafts = {
            row.row_id: row_alone.tokens[len(row.tokens) :][:2] for row, row_alone in zip(together, alone, strict=True)
        }
        drafts[2][1:] = [3]
        driver.step([(row, 1) for row in together], drafts=drafts)
    for row, row_alone in zip(together, alone, strict=True):
        assert row.tokens[:5] == row_alone.tokens[: len(row.tokens)]


def test_a_rows_bits_are_the_same_alone_and_beside_others(ranks: RankThreads) -> None:
    driver = RunnerDriver(ranks)  # type: ignore[arg-type]
    beside, alone = some_rows(), some_rows()[0]
    run_rows(driver, beside)
    alone.row_id, alone.block_table = 3, [6, 7, 8]
    run_rows(driver, [alone], chunk=100)
    assert alone.report == beside[0].report


def test_a_row_that_can_not_be_run_fails_alone_and_alike_on_all_ranks(ranks: RankThreads) -> None:
    driver = RunnerDriver(ranks)  # type: ignore[arg-type]
    bad, good = Row(1, [5, 10**6], Sampling(temperature=0.0), [1]), Row(2, [9, 8], Sampling(temperature=0.0), [2])
    of_bad, of_good = driver.step([(bad, 2), (good, 2)])
    assert of_bad.error is not None
    assert "vocabulary" in of_bad.error.message
    assert len(of_good.token_ids) == 1
    driver.step([(good, 1)], removed_row_ids=[1])
    (only_bad,) = driver.step([(Row(3, [-1], Sampling(), [1]), 1)])  # nothing is left to compute, on any rank
    assert only_bad.error is not None
    driver.step([(good, 1)])
    assert len(good.tokens) == 3


def test_children_begin_with_a_draw_each_from_one_prefill(ranks: RankThreads) -> None:
    sampling = Sampling(temperature=1.0, seed=5)
    parent = NewRow(
        row_id=1,
        child=0,
        token_ids=[5, 6, 7],
        num_prompt_tokens=3,
        num_computed_tokens=0,
        block_table=[1],
        sampling=sampling,
    )
    prefill = ExecuteStep(executor_epoch=1, step_id=1, new_rows=[parent], rows=[ScheduledRow(1, 0, 3, 2)])
    expected = make_runner(tiny_checkpoint())
    (drawn,) = ranks.execute(prefill).rows
    assert drawn.token_ids == expected.execute(prefill).rows[0].token_ids
    child = NewRow(
        row_id=2,
        child=1,
        token_ids=[5, 6, 7, drawn.token_ids[1]],
        num_prompt_tokens=3,
        num_computed_tokens=3,
        block_table=[2],
        sampling=sampling,
    )
    rows = [ScheduledRow(1, 3, 1), ScheduledRow(2, 3, 1)]
    decode = ExecuteStep(executor_epoch=1, step_id=2, block_copies=[(1, 2)], new_rows=[child], rows=rows)
    tokens = [row.token_ids for row in ranks.execute(decode).rows]
    assert tokens == [row.token_ids for row in expected.execute(decode).rows]


def test_ranks_agree_on_the_pool_and_only_the_output_rank_answers(ranks: RankThreads) -> None:
    assert len({ready.num_blocks for ready in ranks.ready}) == 1
    assert len(ranks.ready) == len(ranks.workers)
    driver = RunnerDriver(ranks)  # type: ignore[arg-type]
    row = Row(1, [5, 6], Sampling(temperature=0.0), [1])
    driver.step([(row, 2)])
    (answer,) = ranks.answers(CallUtility(call_id=1, method="batch_rows"))
    assert isinstance(answer, UtilityResult)
    assert answer.result == [[1, 3, [1]]]
    assert "for each of" in ranks.ready[0].memory
    assert "other ranks" in dict(ranks.ready[0].startup)
