"""`bench throughput` on a tiny checkpoint, and what its figures are made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagewire.frontend.bench.dataset.config import DatasetConfig
from pagewire.frontend.bench.offline.config import BenchThroughputConfig
from pagewire.frontend.bench.offline.throughput import fitted, run
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint

ENGINE = {"max_model_len": 128, "max_num_seqs": 4, "kv_cache_memory_bytes": 2**22, "log_level": "warning"}


def test_prompts_are_cut_or_repeated_to_their_length():
    assert fitted([1, 2, 3], 2) == [1, 2]
    assert fitted([1, 2, 3], 7) == [1, 2, 3, 1, 2, 3, 1]
    with pytest.raises(ConfigError, match="no token"):
        fitted([], 1)


def test_input_len_and_output_len_are_the_random_lengths():
    config = BenchThroughputConfig(input_len=7, output_len=9, dataset=DatasetConfig(num_prompts=2))
    assert (config.requests.random_input_len, config.requests.random_output_len) == (7, 9)
    assert config.requests.num_prompts == 2
    with pytest.raises(ConfigError, match="sharegpt has its own"):
        BenchThroughputConfig(input_len=7, dataset=DatasetConfig(dataset_name="sharegpt"))


def test_a_file_that_can_not_be_written_is_refused_before_the_engine_starts():
    with pytest.raises(ConfigError, match=r"--output-json /no/such/x\.json: /no/such is no folder"):
        run(BenchThroughputConfig(output_json="/no/such/x.json"), {"model": "no/such-model"}, print)


@pytest.mark.slow
def test_figures_are_printed_and_saved(tmp_path: Path):
    config = BenchThroughputConfig(
        input_len=20, output_len=12, output_json=str(tmp_path / "x.json"),
        dataset=DatasetConfig(num_prompts=12, random_range_ratio=0.5),
    )  # fmt: skip
    lines: list[str] = []
    assert run(config, {"model": str(tiny_checkpoint("llama")), **ENGINE}, lines.append) == 0
    document = json.loads((tmp_path / "x.json").read_text())
    assert document["num_requests"] == 12
    assert lines[0].startswith(f"Throughput: {document['requests_per_second']:.2f} requests/s, ")
    num_prompt, num_output = (int(line.rpartition(" ")[2]) for line in lines[1:3])
    assert num_prompt + num_output == document["total_num_tokens"]
    assert document["peak_requests_running"] == 4
    assert 0.5 < document["static_slot_occupancy"] < document["slot_occupancy"] <= 1
    assert document["kv_slots_filled_if_reserved"] < document["kv_slots_filled_at_peak"] <= 1
    assert document["longest_batch_paged"] > document["longest_batch_reserved"] > 0
    assert any("4 rows worked" in line for line in lines)
    assert document["mean_device_ms"] > 0
    assert any(line.startswith("Mean step: ") for line in lines)


@pytest.mark.slow
def test_requests_beyond_the_context_are_refused_before_they_run():
    config = BenchThroughputConfig(input_len=120, output_len=12, dataset=DatasetConfig(num_prompts=1))
    with pytest.raises(ConfigError, match="132 tokens, prompt and output together"):
        run(config, {"model": str(tiny_checkpoint("llama")), **ENGINE}, print)
