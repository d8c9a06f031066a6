"""The kernels' bench prints what `pagewire bench kernels` reads, and measures what it says."""

from __future__ import annotations

import json
import time

import msgspec
import pytest

from pagewire.frontend.bench.offline.kernels import KernelReport
from pagewire.gpu_executor import bench_kernels
from pagewire.gpu_executor.kernels.cpu.engine import NativeEngine
from pagewire.gpu_executor.kernels.cpu.machine_limits import MachineLimits, fastest_s
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing

LIMITS = MachineLimits(memory=10e9, cache=40e9, float_products=100e9, integer_products=200e9)


def test_share_is_of_the_limit_that_binds():
    streams = bench_kernels.Measurement("k", "s", 1.0, num_bytes=5_000_000_000, num_operations=1_000_000_000)
    assert streams.beside(LIMITS).of_limit == pytest.approx(0.5)
    assert streams.beside(LIMITS).gb_per_s == pytest.approx(5.0)
    multiplies = bench_kernels.Measurement("k", "s", 1.0, 1_000_000, 50_000_000_000, is_integer=True)
    assert multiplies.beside(LIMITS).of_limit == pytest.approx(0.25)
    assert bench_kernels.Measurement("k", "s", 1e-6).beside(LIMITS).of_limit is None


def test_fastest_call_counts():
    """A slow first call, which fills caches, is not what a kernel takes."""
    seconds = fastest_s(lambda index: time.perf_counter_ns() if index else time.sleep(0.02), 0.0, 3)
    assert 0 < seconds < 0.02


def test_limits_of_two_readings_are_the_higher_ones():
    other = MachineLimits(memory=20e9, cache=1.0, float_products=1.0, integer_products=300e9)
    assert LIMITS.best_with(other) == MachineLimits(20e9, 40e9, 100e9, 300e9)


@pytest.mark.slow
def test_report_is_what_the_command_reads(capsys):
    try:
        NativeEngine(1)
    except LibraryMissing as exc:
        pytest.skip(str(exc))
    assert bench_kernels.main(["--json", "--threads", "1", "--layouts", "int4", "--rows", "1"]) == 0
    printed = capsys.readouterr().out
    report = msgspec.json.decode(printed, type=KernelReport)
    assert len(report.machine) == 4
    assert all(limit.value > 0 for limit in report.machine)
    assert {one.kernel for one in report.kernels} >= {"linear int4", "attention float16", "rms_norm"}
    assert all(one.us > 0 for one in report.kernels)
    assert set(json.loads(printed)) == {"title", "machine", "kernels"}
