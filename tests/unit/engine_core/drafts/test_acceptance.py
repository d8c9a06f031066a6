"""How often drafts were right."""

from __future__ import annotations

import pytest

from pagewire.engine_core.drafts.acceptance import Acceptance


def test_a_draft_that_is_always_right_is_soon_trusted():
    acceptance = Acceptance()
    for _ in range(10):
        acceptance.observe(4, 4)
    assert acceptance.rate > 0.95


def test_a_draft_that_is_never_right_is_soon_distrusted():
    acceptance = Acceptance()
    for _ in range(10):
        acceptance.observe(4, 0)
    assert acceptance.rate < 0.1


def test_what_came_after_a_wrong_draft_does_not_count():
    short, long = Acceptance(), Acceptance()
    short.observe(2, 1)
    long.observe(40, 1)
    assert short.rate == long.rate


def test_the_rate_is_that_of_each_draft_and_not_of_the_whole_row():
    acceptance = Acceptance()
    for index in range(200):
        acceptance.observe(5, 3 if index % 2 else 4)  # 7 of 9 tried
    assert acceptance.rate == pytest.approx(7 / 9, abs=0.1)
