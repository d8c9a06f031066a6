from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.frontend.bench.offline.config import BenchStartupConfig
from pagewire.frontend.bench.offline.startup import (
    Start,
    drop_from_page_cache,
    run,
    startup_document,
    startup_table,
)
from pagewire.ipc.errors import ConfigError, MachineError
from tests.support.tiny_model import tiny_checkpoint

WHOLE = "from the command until ready"


def test_phases_are_medians_and_the_whole_stands_last():
    starts = {
        "cold": [Start([("weights", seconds), (WHOLE, 2 * seconds)]) for seconds in (1.0, 9.0, 2.0)],
        "warm": [Start([("weights", 0.5), ("new", 0.1), (WHOLE, 1.0)])],
    }
    rows = [line.split() for line in startup_table(starts).splitlines()[1:]]
    assert rows == [
        ["weights", "2.00", "0.50"],
        ["new", "-", "0.10"],
        ["from", "the", "command", "until", "ready", "4.00", "1.00"],
    ]
    assert startup_document(starts)["cold"]["median_s"] == {"weights": 2.0, WHOLE: 4.0}
    assert len(startup_document(starts)["cold"]["starts_s"]) == 3


def test_nothing_to_measure_is_refused():
    with pytest.raises(ConfigError, match="nothing to measure"):
        BenchStartupConfig(num_iters_cold=0, num_iters_warm=0)


def test_every_file_of_a_model_is_dropped_and_stays_readable(tmp_path: Path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "weights").write_bytes(b"x" * 9000)
    drop_from_page_cache(tmp_path)
    drop_from_page_cache(tmp_path / "below" / "weights")
    assert (tmp_path / "below" / "weights").read_bytes() == b"x" * 9000


@pytest.mark.slow
def test_a_server_that_does_not_start_is_told_with_its_last_words(tmp_path: Path):
    config = BenchStartupConfig(num_iters_cold=0, num_iters_warmup=0, num_iters_warm=1)
    with pytest.raises(MachineError, match=r"did not start: pagewire: error: .*nowhere"):
        run(config, tmp_path, ["--model", str(tmp_path / "nowhere")], print)


@pytest.mark.slow
def test_a_real_start_is_timed_by_phase():
    config = BenchStartupConfig(num_iters_cold=1, num_iters_warmup=0, num_iters_warm=0)
    model = tiny_checkpoint("llama")
    lines: list[str] = []
    arguments = ["--model", str(model), "--num-gpu-blocks-override", "8", "--max-model-len", "64"]
    assert run(config, model, arguments, lines.append) == 0
    table = {line[: line.rindex(" ")].strip(): line.split()[-1] for line in lines[0].splitlines()[1:]}
    assert "engine: weights" in table
    assert float(table[WHOLE]) > float(table["engine: imports"]) > 0
