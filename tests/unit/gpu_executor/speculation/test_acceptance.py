"""Which drafts were right."""

from __future__ import annotations

import pytest

from pagewire.gpu_executor.sampling.draw import Drawn
from pagewire.gpu_executor.speculation.acceptance import accept
from pagewire.ipc.errors import EngineError
from pagewire.ipc.outputs import TokenLogprobs

FAILED = Drawn(error=EngineError("planted").to_info())


def drawn(*token_ids: int) -> list[Drawn]:
    return [Drawn([token_id], [TokenLogprobs(token_id=token_id, logprob=-1.0, rank=1)]) for token_id in token_ids]


@pytest.mark.parametrize(
    ("drafts", "draws", "expected"),
    [
        ([], [5], [5]),
        ([5, 6], [5, 6, 7], [5, 6, 7]),
        ([5, 6], [5, 9, 7], [5, 9]),
        ([5, 6], [4, 6, 7], [4]),
        ([5, 5], [5, 5, 5], [5, 5, 5]),
    ],
)
def test_a_row_gets_its_right_drafts_and_the_token_behind_them(
    drafts: list[int], draws: list[int], expected: list[int]
):
    got = accept(drafts, drawn(*draws))
    assert got.token_ids == expected
    assert [entry.token_id for entry in got.logprobs] == expected
    assert got.error is None


def test_a_row_that_can_draw_nothing_fails():
    assert accept([5, 6], [FAILED, *drawn(6, 7)]).error == FAILED.error


def test_a_failure_behind_right_drafts_is_left_to_the_next_step():
    got = accept([5, 6], [*drawn(5), FAILED, *drawn(7)])
    assert (got.token_ids, got.error) == ([5], None)


def test_a_failure_behind_a_wrong_draft_is_none():
    got = accept([5, 6], [*drawn(4), FAILED, FAILED])
    assert (got.token_ids, got.error) == ([4], None)
