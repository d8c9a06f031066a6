"""The startup table names every phase and what the memory holds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pagewire.frontend.supervisor.startup_report import StartupReport, describe_engine, read_phases
from tests.support.fake_core import engine_info


def test_table_has_own_and_engine_phases_and_the_total():
    report = StartupReport()
    with report.phase("find the model"):
        pass
    lines = report.lines(engine_info(startup=(("weights", 1.25),), memory="the budget"))
    assert any("find the model" in line and line.endswith(" s") for line in lines)
    assert any("engine: weights" in line and "1.25 s" in line for line in lines)
    assert any("ready after" in line for line in lines)
    assert "the budget" in lines


def test_failing_phase_is_timed_too():
    report = StartupReport()
    with pytest.raises(KeyError), report.phase("broken"):
        raise KeyError
    assert any("broken" in line for line in report.lines(engine_info()))


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", "# GPU blocks: 0, # CPU blocks: 30"), ("cuda", "# GPU blocks: 30, # CPU blocks: 0")],
)
def test_blocks_are_counted_where_they_lie(device: str, expected: str):
    info = replace(engine_info(), device=device, num_blocks=30, block_size=16, max_model_len=100)
    lines = describe_engine(info)
    assert expected in lines
    assert any("480 tokens" in line and "4.8 requests" in line for line in lines)


def test_device_is_named_where_its_type_does_not_say_it_all():
    info = replace(engine_info(), device="cuda", device_name="NVIDIA H200")
    assert " on cuda (NVIDIA H200), context of " in describe_engine(info)[0]
    assert " on cpu, context of " in describe_engine(replace(info, device="cpu", device_name=""))[0]


@pytest.mark.parametrize(
    ("tp", "pp", "num_cores", "expected"),
    [
        (1, 1, 1, " tokens"),
        (1, 1, 2, " tokens; 2 cores"),
        (3, 1, 1, " tokens; 3 executors (tp 3 x pp 1)"),
        (4, 2, 2, " tokens; 2 cores of 8 executors each (tp 4 x pp 2)"),
    ],
)
def test_layout_is_named_where_several_compute(tp: int, pp: int, num_cores: int, expected: str):
    info = replace(engine_info(), tensor_parallel_size=tp, pipeline_parallel_size=pp, data_parallel_size=num_cores)
    assert describe_engine(info)[0].endswith(expected)


def test_phases_can_be_read_back_from_a_log():
    report = StartupReport()
    with report.phase("find the model"):
        pass
    lines = [f"INFO 11-29 18:29:39 [frontend] {line}\n" for line in report.lines(engine_info(startup=(("w", 1.25),)))]
    phases = read_phases([*lines, "INFO 11-29 18:29:39 [frontend] ready: serving http://x\n"])
    assert list(phases) == ["find the model", "engine: w", "ready after"]
    assert phases["engine: w"] == 1.25
