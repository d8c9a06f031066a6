"""Ranks that only add up."""

from __future__ import annotations

import pytest

from tools.measure_rank_sums import main


@pytest.mark.slow  # starts two processes that import torch
def test_each_size_is_timed_as_ranks_add_it_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "1", "3", "--width", "8", "--repeats", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    timed = [line.rpartition(":")[0] for line in lines[1:]]
    assert [of for of in timed if of.endswith("in rank order")] == [f"[{rows}, 8] in rank order" for rows in (1, 3)]
    # Where ranks share memory, nothing is left to the library.
    assert all(of.endswith(("in rank order", "any order")) for of in timed)
