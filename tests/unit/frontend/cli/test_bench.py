"""`pagewire bench serve` as it is typed: the config that it would run with, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from pagewire.frontend.bench.offline.config import BenchThroughputConfig
from pagewire.frontend.bench.serving.config import BenchServeConfig
from pagewire.frontend.cli.bench import bench_command, offline_bench_flags
from pagewire.frontend.cli.flags import build_config, config_flags, spelled_out
from pagewire.frontend.cli.main import run
from pagewire.frontend.cli.needless import drop_flags
from pagewire.frontend.cli.refused import BENCH_OFFLINE


@pytest.fixture(autouse=True)
def _no_keys_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAGEWIRE_API_KEY", "VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def config_of(*args: str) -> BenchServeConfig:
    """The config that `pagewire bench serve ARGS` runs with."""
    configs: list[BenchServeConfig] = []

    def keep(config: BenchServeConfig, _say: Callable[[str], None]) -> int:
        configs.append(config)
        return 0

    assert bench_command(keep).main(args=["serve", *args], prog_name="bench", standalone_mode=False) == 0
    return configs[0]


def test_no_flag_means_the_defaults_of_the_config():
    assert config_of() == BenchServeConfig()


def test_a_command_line_of_vllm_works_as_typed():
    config = config_of(
        "--backend", "vllm", "--model", "M", "--dataset-name", "sharegpt", "--num-prompts", "1k",
        "--request-rate", "10", "--goodput", "ttft:500", "tpot:50", "--ignore-eos",
        "--percentile_metrics", "ttft,e2el", "--save-result",
    )  # fmt: skip
    assert config.model == "M"
    assert (config.dataset.dataset_name, config.dataset.num_prompts, config.request_rate) == ("sharegpt", 1000, 10.0)
    assert config.limits_ms == {"ttft": 500.0, "tpot": 50.0}
    assert config.metrics == ("ttft", "e2el")
    assert config.ignore_eos
    assert config.save_result


def test_an_infinite_rate_may_be_typed():
    assert math.isinf(config_of("--request-rate", "inf").request_rate)


def test_the_key_comes_from_the_environment_if_not_typed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "of openai")
    assert config_of().api_key == "of openai"
    monkeypatch.setenv("PAGEWIRE_API_KEY", "own")
    assert config_of().api_key == "own"
    assert config_of("--api-key", "typed").api_key == "typed"


def test_a_config_file_gives_flags(tmp_path: Path):
    file = tmp_path / "bench.yaml"
    file.write_text("num-prompts: 7\nrequest-rate: inf\ngoodput: [ttft:5, e2el:9]\n")
    config = config_of("--config", str(file), "--seed", "3")
    assert (config.dataset.num_prompts, config.dataset.seed, config.goodput) == (7, 3, ("ttft:5", "e2el:9"))


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--num-prompts", "0"], "--num-prompts"),
        (["--port", "70000"], "--port"),
        (["--request-rate", "0"], "--request-rate 0 must be above 0"),
        (["--request-rate", "nan"], "--request-rate nan must be above 0"),
        (["--burstiness", "-1"], "--burstiness -1 must be above 0"),
        (["--max-concurrency", "0"], "--max-concurrency 0 must be at least 1"),
        (["--temperature", "-1"], "--temperature -1"),
        (["--random-range-ratio", "1"], "--random-range-ratio 1"),
        (["--sharegpt-output-len", "0"], "--sharegpt-output-len 0"),
        (["--base-url", "localhost:8000"], "must start with http"),
        (["--backend", "openai-chat", "--endpoint", "/v1/completions"], "give openai."),
        (["--endpoint", "/v1/chat/completions"], "give openai-chat."),
        (["--dataset-path", "x.json"], "--dataset-path is for --dataset-name sharegpt"),
        (["--goodput", "ttft"], "must be metric:ms"),
        (["--goodput", "itl:5"], "ttft, tpot, e2el"),
        (["--goodput", "ttft:x"], "'x' is no number"),
        (["--goodput", "ttft:-1"], "at least 0 ms"),
        (["--percentile-metrics", "ttft,tbt"], "'tbt' is not one of"),
        (["--metric-percentiles", "101"], "from 0 to 100"),
        (["--save-detailed"], "need --save-result"),
        (["--result-dir", "x"], "need --save-result"),
        (["--dataset-name", "burstgpt"], "burstgpt is not supported yet"),
        (["--backend", "sglang"], "any server with OpenAI's API"),
        (["--plot", "x.png"], "--plot needs a sweep"),
        (["--sweep-concurrency", "1,4", "--plot", "x.txt"], "must end in .png"),
        (["--sweep-concurrency", "1,x"], "'x' is no number"),
        (["--sweep-concurrency", "0"], "--sweep-concurrency: 0 must be a whole number from 1 on"),
        (["--sweep-concurrency", ","], "--sweep-concurrency holds no number"),
        (["--sweep-request-rate", "0"], "--sweep-request-rate: 0 must be above 0"),
        (["--sweep-concurrency", "1", "--sweep-request-rate", "2"], "two sweeps"),
        (["--rounds", "0"], "--rounds"),
        (["--target", "localhost:8000"], "--target localhost:8000 must be NAME=URL"),
        (["--target", "a=http://x", "a=http://y"], "each server needs a name of its own"),
        (["--target", "a=http://x", "--base-url", "http://y"], "--target and --base-url both name servers"),
        (["--endpoint-type", "openai-chat"], "--endpoint-type is not taken: use --backend"),
        (["--num-prompt", "1"], "did you mean --num-prompts?"),
        (["extra"], "unexpected extra argument"),
    ],
)
def test_what_can_not_be_met_is_one_line_and_exit_code_2(
    args: list[str], part: str, capsys: pytest.CaptureFixture[str]
):
    assert run(["bench", "serve", *args]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert part in err


def test_flags_without_a_meaning_are_taken_with_a_line(capsys: pytest.CaptureFixture[str]):
    assert config_of("--tokenizer", "x", "--trust-remote-code", "--num-prompts", "5") == config_of("--num-prompts", "5")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "pagewire: --tokenizer has no meaning here: tokens are counted by the server."
    assert second.startswith("pagewire: --trust-remote-code has no meaning here: ")
    kept, (line,) = drop_flags(["--backend", "vllm", "m"], BENCH_OFFLINE.needless, BENCH_OFFLINE.redundant)
    assert kept == ["m"]
    assert "it measures this engine" in line


def test_a_benchmark_of_an_engine_takes_the_engines_flags_too():
    flags = {flag.field: flag for flag in offline_bench_flags(BenchThroughputConfig)}
    assert {"num_prompts", "input_len", "max_num_seqs", "kv_cache_dtype", "seed"} <= flags.keys()
    assert flags["seed"].section == "model"
    given = {"seed": 3, "num_prompts": 7, "max_num_seqs": 5, "model": "m"}
    config = build_config(BenchThroughputConfig, given)
    assert (config.dataset.seed, config.dataset.num_prompts) == (3, 7)


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["throughput", "--dataset", "x"], "--dataset is not taken: use --dataset-name and --dataset-path"),
        (["throughput", "--hf-token", "auto"], "--hf-token is not supported yet"),
        (["throughput", "--request-rate", "3"], "--request-rate is a flag of `pagewire bench serve`"),
        (["throughput", "--num-prompts", "0"], "--num-prompts"),
        (["latency", "--batch-size", "0"], "--batch-size"),
        (["latency", "--temperature", "-1"], "--temperature -1 must be at least 0"),
        (["startup", "--num-iters-cold", "0", "--num-iters-warm", "0"], "nothing to measure"),
        (["kernels", "--output-json", "/no/such/file"], "/no/such is no folder"),
        (["kernels", "--device", "gpu"], "Those of a GPU are timed by `python -m tools.gpu_check`"),
        (["throughput", "/no/such/model"], "/no/such/model"),
    ],
)
def test_what_the_other_benchmarks_can_not_do_is_one_line_too(
    args: list[str], part: str, capsys: pytest.CaptureFixture[str]
):
    assert run(["bench", *args]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert part in err


def test_given_values_are_spelled_out_for_another_command():
    flags = config_flags(BenchServeConfig)
    given = {"num_prompts": 5, "ignore_eos": True, "save_result": False, "goodput": ("ttft:5", "e2el:9"), "model": None}
    assert spelled_out(flags, given) == [
        "--num-prompts", "5", "--ignore-eos", "--goodput", "ttft:5", "--goodput", "e2el:9", "--no-save-result",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["prefix_repetition", "shared-prefix", "prefix-repetition"])
def test_shared_prefixes_have_more_than_one_name(name: str):
    assert config_of("--dataset-name", name).dataset.dataset_name == "prefix_repetition"
