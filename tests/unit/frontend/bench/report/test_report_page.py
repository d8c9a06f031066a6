"""A report stands by itself, shows what was measured, and says what it can't show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pagewire.frontend.bench.report.config import BenchReportConfig
from pagewire.frontend.bench.report.page import report_page
from pagewire.frontend.bench.report.run import run
from pagewire.frontend.bench.report.runs import Run, read_runs, run_name
from pagewire.ipc.errors import ConfigError

DOCUMENT = {
    "date": "20260102-030405", "model_id": "m<odel>", "duration": 2.0, "completed": 2, "failed": 1,
    "output_throughput": 4.0, "median_ttft_ms": 150.0, "p99_ttft_ms": 199.0, "median_itl_ms": 250.0,
    "start_times": [0.0, 1.0, 0.5], "ttfts": [0.1, 0.2, 0.0], "itls": [[0.25, 0.25], [0.3], []],
    "output_lens": [3, 4, 0], "errors": ["", "", "HTTP 500"],
}  # fmt: skip
PLAIN = {key: value for key, value in DOCUMENT.items() if not isinstance(value, list)}


def test_failed_requests_are_in_no_distribution():
    found = Run("a", DOCUMENT)
    assert found.samples_ms("ttft") == [100.0, 200.0]
    assert found.samples_ms("itl") == [250.0, 250.0, 300.0]
    assert found.samples_ms("e2el") == pytest.approx([600.0, 500.0])


def test_course_ends_at_rest_and_loses_no_token():
    found = Run("a", DOCUMENT)
    under_way = found.concurrency()
    assert (max(number for _, number in under_way), under_way[-1][1]) == (1, 0)
    points = found.throughput()
    window_s = points[1][0] - points[0][0]
    assert sum(rate for _, rate in points) * window_s == pytest.approx(7)


def test_times_of_a_clock_without_a_known_zero_count_from_the_first_request():
    shifted = Run("vllm", {**DOCUMENT, "start_times": [4096.0, 4097.0, 4096.5]})
    assert shifted.concurrency() == Run("a", DOCUMENT).concurrency()
    assert shifted.throughput() == Run("a", DOCUMENT).throughput()


def test_lists_that_do_not_fit_together_are_not_drawn():
    assert not Run("a", {**DOCUMENT, "ttfts": [0.1]}).has_details


def test_page_asks_for_nothing_outside_and_its_charts_are_whole():
    page = report_page([Run("a & b", DOCUMENT), Run("plain", PLAIN)], title="<title>")
    assert not re.search(r"(src|href)=|url\(|@import|https?://", page)
    assert "&lt;title&gt;" in page
    assert "a &amp; b" in page
    assert "m&lt;odel&gt;" in page
    assert "Saved without --save-detailed" in page
    charts = [ET.fromstring(chart) for chart in re.findall(r"<svg.*?</svg>", page)]
    assert len(charts) == 2 + 3 + 2
    for chart in charts:
        paths = [path.get("d", "") for path in chart.iter("path")]
        assert all(0 <= float(number) <= 560 for path in paths for number in re.findall(r"-?\d+\.\d+", path))
        middled = [text for text in chart.iter("text") if text.get("text-anchor") == "middle" and text.get("x")]
        assert all(float(text.get("x", "")) + len(text.text or "") * 3.5 <= 560 for text in middled), "none is cut off"


def test_one_plain_run_is_a_table():
    page = report_page([Run("plain", PLAIN)], title="t")
    assert "<svg" not in page
    assert "199.00" in page


def test_runs_are_read_from_files_of_either_kind(tmp_path: Path):
    (tmp_path / "one.json").write_text(json.dumps(DOCUMENT))
    several = [{**PLAIN, "target": "here", "max_concurrency": count} for count in (1, 1, 4)]
    (tmp_path / "many.json").write_text(json.dumps({"date": "x", "runs": several}))
    names = [found.name for found in read_runs([tmp_path / "one.json", tmp_path / "many.json"])]
    assert names == ["one", "many: here, 1 at once", "many: here, 1 at once (2)", "many: here, 4 at once"]
    assert run_name({"model_id": "m", "request_rate": 2.0}) == "m, 2.0 req/s"


@pytest.mark.parametrize("text", ["no json", "{}", '{"runs": 3}', '{"runs": [{}]}', "[]"])
def test_what_is_no_result_is_refused_by_name(tmp_path: Path, text: str):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json is no result"):
        read_runs([path])
    with pytest.raises(ConfigError, match="can't be read"):
        read_runs([tmp_path / "none.json"])


def test_page_is_written_where_it_is_asked_for(tmp_path: Path):
    (tmp_path / "one.json").write_text(json.dumps(DOCUMENT))
    said: list[str] = []
    output = tmp_path / "page.html"
    assert run(BenchReportConfig(output=str(output)), [tmp_path / "one.json"], said.append) == 0
    assert output.read_text().startswith("<!doctype html>")
    assert said == [f"Reported in {output}."]
    with pytest.raises(ConfigError, match="must end in"):
        BenchReportConfig(output="page.pdf")
    with pytest.raises(ConfigError, match="does not exist"):
        BenchReportConfig(output=str(tmp_path / "none" / "page.html"))
