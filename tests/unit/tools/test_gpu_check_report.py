"""From findings to goals and a report: right figures in the right places, and nothing claimed that was not measured."""

from __future__ import annotations

import pytest

from pagewire.checkpoint.estimate.devices import find_device
from pagewire.checkpoint.estimate.shapes import SHAPES
from tools.gpu_check.goals import goals, share_of_limit
from tools.gpu_check.records import (
    AnyRecord,
    Ceiling,
    Check,
    EngineStart,
    GenerateRun,
    Machine,
    OfflineRun,
    OpRate,
    PartEnd,
    ServedRun,
)
from tools.gpu_check.report import markdown
from tools.gpu_check.roof import data_sheet, decode_seconds, measured_roof, op_seconds

MODEL = SHAPES["llama-3.1-8b"].config
SHEET = find_device("h200")
MACHINE = Machine(device="NVIDIA H200", memory_bytes=150 << 30, versions={"torch": "2.13"}, date="2026-11-30")
CEILINGS = (
    Ceiling(name="copy", value=4100.0, unit="GB/s"),
    Ceiling(name="read", value=4300.0, unit="GB/s"),
    Ceiling(name="products", value=700.0, unit="TFLOP/s"),
)


def offline(num_requests: int, share: float, output_tokens_per_s: float = 6000.0) -> OfflineRun:
    """A run whose decodes reach a share of the data sheet's limit."""
    least_s = decode_seconds(MODEL, num_requests, 1024, SHEET)
    return OfflineRun(
        num_requests=num_requests,
        prompt_tokens=960,
        output_tokens=128,
        output_tokens_per_s=output_tokens_per_s,
        ttft_ms=(100.0, 200.0),
        decode_tokens_per_s=share * num_requests / least_s,
        decode_context=1024.0,
        itl_ms=(1e3 * least_s / share, 20.0),
        device_ms=12.0,
        host_gap_ms=0.125,
    )


def verdicts(*records: AnyRecord) -> list[bool | None]:
    return [goal.is_met for goal in goals(MODEL, records, SHEET)]


@pytest.mark.parametrize(
    ("name", "sheet"),
    [
        ("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"), ("NVIDIA H20", "h20"), ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"), ("NVIDIA A100 80GB PCIe", "a100-pcie"), ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"), ("Tesla V100-SXM2-32GB", "v100"), ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("AMD Instinct MI300X", "mi300x"),
    ],
)  # fmt: skip
def test_devices_are_known_by_what_their_driver_calls_them(name: str, sheet: str):
    found = data_sheet([Machine(device=name, memory_bytes=0, versions={}, date="")])
    assert found is not None
    assert found.name == sheet


def test_an_unknown_device_has_only_what_was_measured():
    unknown = Machine(device="Some GPU", memory_bytes=0, versions={}, date="")
    assert data_sheet([unknown]) is None
    roof = measured_roof([unknown, *CEILINGS])
    assert roof is not None
    assert (roof.bandwidth, roof.flops) == (4.3e12, 7e14)
    assert measured_roof([unknown, *CEILINGS[:2]]) is None


def test_the_limit_of_an_op_is_the_larger_of_its_two_times():
    assert op_seconds(4.8e9, 0, SHEET) == pytest.approx(1e-3)
    assert op_seconds(4.8e9, 989e10, SHEET) == pytest.approx(1e-2)


def test_shares_come_out_as_they_were_put_in():
    for num_requests, share in ((1, 0.8), (256, 0.65)):
        assert share_of_limit(MODEL, offline(num_requests, share), SHEET) == pytest.approx(share)


def test_nothing_measured_is_nothing_claimed():
    assert set(verdicts()) == {None}
    assert "not measured" in markdown(MODEL, [])
    assert " met " not in markdown(MODEL, [])


def test_goals_are_met_and_missed_at_their_limits():
    good = Check(op="rotary", case="3", error=0.001, limit=0.002)
    bad = Check(op="rotary", case="3", error=0.003, limit=0.002)
    slow = GenerateRun(num_requests=64, prompt_tokens=960, output_tokens=128, output_tokens_per_s=990.0)
    fast = GenerateRun(num_requests=64, prompt_tokens=960, output_tokens=128, output_tokens_per_s=1010.0)
    runs = [offline(1, 1 / 1.29), offline(64, 0.7), offline(256, 0.705)]
    assert verdicts(good, *runs, slow)[:4] == [True, True, True, True]
    missed = [offline(1, 1 / 1.31), offline(64, 0.7), offline(256, 0.695)]
    assert verdicts(good, bad, *missed, fast)[:4] == [False, False, False, False]


def test_a_report_has_every_section_that_was_measured():
    records: list[AnyRecord] = [
        MACHINE,
        *CEILINGS,
        EngineStart(seconds=21.0, memory="139.8 GiB x 0.9: ..."),
        Check(op="linear int4", case="1 x 4096 | odd", error=None, limit=0.01, failure="CompilationError: line 3"),
        OpRate(op="gate and up", num_rows=256, seconds=100e-6, num_bytes=251e6, operations=60.1e9),
        offline(256, 0.72),
        ServedRun(
            request_rate=10.0, num_requests=120, prompt_tokens=256, output_tokens=240, output_tokens_per_s=2345.0,
            ttft_ms=(31.0, 80.0), itl_ms=(6.0, 11.0),
        ),
        GenerateRun(num_requests=64, prompt_tokens=960, output_tokens=128, output_tokens_per_s=700.0),
        PartEnd(part="transformers", outcome="out of time", seconds=45.0, reason="more than 45 s"),
    ]  # fmt: skip
    report = markdown(MODEL, records)
    for part in (
        "| device | NVIDIA H200 |", "4,100 GB/s, data sheet 4,800", "### Goals", "### Offline",
        "72.0% with 256 requests",
        "transformers' generate, 64 requests: 700 tok/s.", "| 0.125 | 72.0% |", "### Served over HTTP", "| 2,345 |",
        "| gate and up | 256 | 100.0 | 2,510 | 601.0 | 61% | 86% |", "0 of 1 comparisons", "1 x 4096 \\| odd",
        "CompilationError: line 3", "| transformers | out of time | 45.0 | more than 45 s |",
    ):  # fmt: skip
        assert part in report
    assert report.endswith("|\n")


def test_a_trial_on_a_cpu_is_held_against_no_goal():
    report = markdown(MODEL, [*CEILINGS, offline(1, 0.5)], is_trial=True)
    assert "### Goals" not in report
    assert "data sheet 4,800" not in report
    assert "| - | - |" in report
