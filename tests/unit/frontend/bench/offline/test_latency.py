from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagewire.frontend.bench.offline.config import BenchLatencyConfig
from pagewire.frontend.bench.offline.latency import LatencyResult, run
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint

ENGINE = {"max_model_len": 128, "max_num_seqs": 2, "kv_cache_memory_bytes": 2**22, "log_level": "warning"}


def test_the_lines_are_those_that_scripts_parse():
    assert LatencyResult([1.0, 2.0, 3.0]).lines() == [
        "Avg latency: 2.0 seconds",
        "10% percentile latency: 1.2 seconds",
        "25% percentile latency: 1.5 seconds",
        "50% percentile latency: 2.0 seconds",
        "75% percentile latency: 2.5 seconds",
        "90% percentile latency: 2.8 seconds",
        "99% percentile latency: 2.98 seconds",
    ]
    assert LatencyResult([1.0, 3.0]).document()["percentiles"]["50"] == 2.0


@pytest.mark.slow
def test_each_measured_batch_is_one_latency(tmp_path: Path):
    config = BenchLatencyConfig(
        input_len=5, output_len=3, batch_size=3, num_iters=4, num_iters_warmup=1, output_json=str(tmp_path / "x.json")
    )
    lines: list[str] = []
    assert run(config, {"model": str(tiny_checkpoint("llama")), **ENGINE}, lines.append) == 0
    assert lines[0] == "Only 2 of the 3 requests run at once (--max-num-seqs)."
    document = json.loads((tmp_path / "x.json").read_text())
    assert len(document["latencies"]) == 4
    assert min(document["latencies"]) <= document["avg_latency"] <= max(document["latencies"])


@pytest.mark.slow
def test_requests_beyond_the_context_are_refused():
    with pytest.raises(ConfigError, match="beyond the 128 tokens"):
        run(BenchLatencyConfig(input_len=100), {"model": str(tiny_checkpoint("llama")), **ENGINE}, print)
