"""Ranks that only add up."""

from __future__ import annotations

import pytest

from tools.measure_rank_sums import main


@pytest.mark.slow  # starts two processes that import torch
def test_each_size_is_timed_in_both_orders(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "1", "3", "--width", "8", "--repeats", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(":")[0] for line in lines[1:]] == [
        f"[{rows}, 8] {order}" for rows in (1, 3) for order in ("in rank order", "any order")
    ]
