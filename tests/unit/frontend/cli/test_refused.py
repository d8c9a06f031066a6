from __future__ import annotations

from collections.abc import Callable

import pytest

from pagewire.frontend.bench.offline.config import BenchLatencyConfig, BenchStartupConfig, BenchThroughputConfig
from pagewire.frontend.cli.bench import offline_bench_flags
from pagewire.frontend.cli.flags import Flag, bench_serve_flags, engine_flags, server_flags
from pagewire.frontend.cli.main import program
from pagewire.frontend.cli.refused import (
    BENCH_OFFLINE,
    BENCH_SERVE,
    SERVING,
    RefusedFlags,
    explain_unknown_benchmark,
    explain_unknown_command,
    explain_unknown_flag,
    explain_unknown_models_command,
)

KNOWN = [flag.name for flag in [*engine_flags(), *server_flags()]]


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        ([*engine_flags(), *server_flags()], SERVING),
        (bench_serve_flags(), BENCH_SERVE),
        (offline_bench_flags(BenchThroughputConfig), BENCH_OFFLINE),
        (offline_bench_flags(BenchLatencyConfig), BENCH_OFFLINE),
        (offline_bench_flags(BenchStartupConfig), BENCH_OFFLINE),
    ],
)
def test_a_flag_that_was_built_is_no_longer_refused(flags: list[Flag], refused: RefusedFlags):
    built = {flag.name.removeprefix("--") for flag in flags}
    assert built.isdisjoint(refused.not_yet)
    assert built.isdisjoint(refused.needless)
    assert built.isdisjoint(refused.renamed)
    assert set(refused.not_yet).isdisjoint(refused.needless)
    assert set(refused.renamed).isdisjoint({*refused.not_yet, *refused.needless})
    assert built.isdisjoint(refused.redundant)
    assert {flag.partition(".")[0] for flag in refused.redundant} <= set(refused.not_yet)


@pytest.mark.parametrize(
    ("flag", "part"),
    [
        ("--hf-token", "--hf-token is not supported yet"),
        ("--data-parallel-rank", "--data-parallel-size starts all engines"),
        ("-ngl", "-ngl is not taken: all layers are on the device"),
        ("--n-gpu-layers", "is not taken"),
        ("--ctx-size", "use --max-model-len"),
        ("--worker-cls", "--worker-cls is not supported yet: no code of others"),
        ("--logits-processors", "--logits-processors is not supported yet"),
        ("--calculate-kv-scales", "--calculate-kv-scales is not supported yet"),
        ("--task", "one engine generates text"),
        ("--hf-overrides.rope_theta", "--hf-overrides.rope-theta is not supported yet: the model's config"),
        ("--tp-size", "use --tensor-parallel-size"),
        ("--mem-fraction-static", "use --gpu-memory-utilization"),
        ("--max-num-seq", "did you mean --max-num-seqs?"),
        ("--zzz", "unknown flag --zzz."),
        ("--there", "--there is a flag of `pagewire other`."),
    ],
)
def test_each_unknown_flag_gets_the_line_that_helps(flag: str, part: str):
    assert part in explain_unknown_flag(flag, KNOWN, {"--there": "pagewire other"})


def test_an_unknown_command_lists_what_there_is():
    assert explain_unknown_command("qqq", ["serve", "engine"]) == "unknown command 'qqq'. There are: engine, serve."
    assert explain_unknown_command("Serve", ["serve", "engine"]) == "unknown command 'Serve'; did you mean serve?"


@pytest.mark.parametrize(
    ("explain", "name", "meant"),
    [
        (explain_unknown_command, "run", "chat"),
        (explain_unknown_command, "Pull", "models pull"),
        (explain_unknown_command, "version", "--version"),
        (explain_unknown_models_command, "remove", "models rm"),
    ],
)
def test_a_command_that_others_call_otherwise_is_named(explain: Callable[..., str], name: str, meant: str):
    known = program().commands
    assert explain(name, known) == f"unknown command {name!r}; that is `pagewire {meant}` here."
    assert meant.startswith("-") or meant.split()[0] in known


def test_each_command_refuses_its_own_flags():
    assert "use --backend" in explain_unknown_flag("--endpoint-type", [], {}, BENCH_SERVE)
    assert "the tokenizer is the model's own" in explain_unknown_flag("--tokenizer", [], {})
    assert explain_unknown_flag("--quantization", [], {}, BENCH_SERVE) == "unknown flag --quantization."


@pytest.mark.parametrize("name", ["sweep", "mm-processor"])
def test_benchmarks_that_are_not_built_are_refused_by_name(name: str):
    assert explain_unknown_benchmark(name, ["serve"]) == f"the command bench {name} is not supported yet."
