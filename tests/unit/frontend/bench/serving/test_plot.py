from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pagewire.frontend.bench.serving.comparison import ComparedRow
from pagewire.frontend.bench.serving.config import LoadPoint, Target
from pagewire.frontend.bench.serving.plot import check_plot, save_plot
from pagewire.ipc.errors import ConfigError, MachineError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # matplotlib's own dependencies


def row(name: str, clients: int) -> ComparedRow:
    return ComparedRow(
        target=Target(name, "http://x"), point=LoadPoint(clients, float("inf")), num_rounds=1,
        output_throughput=100.0 * clients, request_throughput=1.0, ttft_p50_ms=10.0 * clients, ttft_p99_ms=1.0,
        itl_p50_ms=2.0 * clients, peak_running=None, peak_kv_use=None, kv_filled=None, num_failed=0,
    )  # fmt: skip


@pytest.mark.slow  # imports matplotlib
def test_a_picture_has_a_line_a_server_and_a_point_a_load(tmp_path: Path):
    check_plot(tmp_path / "x.svg")
    rows = [row("one", 1), row("one", 4), row("other", 1)]
    save_plot(rows, tmp_path / "x.svg", title="random, m")
    save_plot(rows, tmp_path / "x.png", title="random, m")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "x.svg").read_text()
    for comment in ("random, m", "one", "other", "4 clients", "output tokens/s", "time to first token, p50 (ms)"):
        assert f"<!-- {comment} -->" in text


@pytest.mark.slow
def test_a_place_that_can_not_be_written_is_named(tmp_path: Path):
    with pytest.raises(MachineError, match=r"missing.x\.png can't be written: No such file"):
        save_plot([row("one", 1)], tmp_path / "missing" / "x.png", title="t")


def test_another_kind_of_file_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"must end in \.png, \.svg, \.pdf"):
        check_plot(tmp_path / "x.txt")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MachineError, match=r"pip install 'pagewire\[plot\]'"):
        check_plot(tmp_path / "x.png")
