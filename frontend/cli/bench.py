"""`pagewire bench`: the group of benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ..bench.offline.config import BenchKernelsConfig, BenchLatencyConfig, BenchStartupConfig, BenchThroughputConfig
from ..bench.report.config import BenchReportConfig
from ..bench.serving.config import BenchServeConfig
from .command import CommandGroup, FlagCommand
from .flags import (
    Flag,
    bench_serve_flags,
    build_config,
    build_engine_config,
    config_flags,
    engine_flags,
    given_values,
    spelled_out,
)
from .model import model_argument, values_with_model
from .refused import BENCH_OFFLINE, BENCH_SERVE, explain_unknown_benchmark

RunBenchServe = Callable[[BenchServeConfig, Callable[[str], None]], int]


def bench_command(run_serve: RunBenchServe | None = None) -> click.Group:
    """Return the group.

    Args:
        run_serve: what `bench serve` runs, with a function that prints a line; that of
            `frontend/bench/serving/serve.py` if None.
    """
    return CommandGroup(
        "bench",
        "Measure: a server under load, an engine without one, its start, its kernels.",
        [
            _serve_command(run_serve),
            _engine_benchmark("throughput", BenchThroughputConfig, _throughput, "Give an engine all requests at once."),
            _engine_benchmark("latency", BenchLatencyConfig, _latency, "Give an engine one batch again and again."),
            _engine_benchmark("startup", BenchStartupConfig, _startup, "Start servers and time the phases of it."),
            _kernels_command(),
            _report_command(),
        ],
        explain=explain_unknown_benchmark,
        elsewhere={flag.name: "pagewire bench serve" for flag in bench_serve_flags()},
    )


def offline_bench_flags(config: type) -> list[Flag]:
    """Return the flags of a benchmark that starts an engine: its own ones, then the engine's.

    A name that both have is one flag, and both take its value (--seed).
    """
    engine = engine_flags()
    names = {flag.field for flag in engine}
    return [*(flag for flag in config_flags(config) if flag.field not in names), *engine]


def _serve_command(run_serve: RunBenchServe | None) -> click.Command:
    def serve(**_: Any) -> int:  # Any: the flags, read from the context with their sources
        ctx = click.get_current_context()
        assert isinstance(ctx.command, FlagCommand)
        config = build_config(BenchServeConfig, given_values(ctx, ctx.command.flag_options))
        if run_serve is not None:
            return run_serve(config, click.echo)
        from ..bench.serving.serve import run

        return run(config, click.echo)

    return FlagCommand(
        "serve", bench_serve_flags(), {}, [], serve,
        "Send requests to a server with OpenAI's API, and print latencies and throughput.", BENCH_SERVE,
    )  # fmt: skip


def _engine_benchmark(
    name: str, config: type, run: Callable[[dict[str, object]], int], help_text: str
) -> click.Command:
    def command(model_tag: str | None, **_: Any) -> int:  # Any: as above
        return run(values_with_model(model_tag))

    elsewhere = {flag.name: "pagewire bench serve" for flag in bench_serve_flags()}
    return FlagCommand(
        name, offline_bench_flags(config), elsewhere, [model_argument()], command, help_text, BENCH_OFFLINE
    )


def _throughput(given: dict[str, object]) -> int:
    config = build_config(BenchThroughputConfig, given)
    from ..bench.offline.throughput import run

    return run(config, _engine_values(given), click.echo)


def _latency(given: dict[str, object]) -> int:
    config = build_config(BenchLatencyConfig, given)
    from ..bench.offline.latency import run

    return run(config, _engine_values(given), click.echo)


def _startup(given: dict[str, object]) -> int:
    config = build_config(BenchStartupConfig, given)
    from ..bench.offline.startup import run
    from ..supervisor.engine_process import prepare_engine

    model = prepare_engine(build_engine_config(given)).model
    # The start's phases are read out of the log.
    arguments = [*_engine_arguments(given), "--log-level", "info"]
    return run(config, Path(model.model_path), arguments, click.echo)


def _kernels_command() -> click.Command:
    def kernels(**_: Any) -> int:  # Any: as above
        ctx = click.get_current_context()
        assert isinstance(ctx.command, FlagCommand)
        config = build_config(BenchKernelsConfig, given_values(ctx, ctx.command.flag_options))
        from ..bench.offline.kernels import run

        return run(config, click.echo)

    return FlagCommand(
        "kernels", config_flags(BenchKernelsConfig), {}, [], kernels,
        "Time single kernels, beside what the machine can do at most.", BENCH_OFFLINE,
    )  # fmt: skip


def _report_command() -> click.Command:
    def report(results: tuple[Path, ...], **_: Any) -> int:  # Any: as above
        ctx = click.get_current_context()
        assert isinstance(ctx.command, FlagCommand)
        config = build_config(BenchReportConfig, given_values(ctx, ctx.command.flag_options))
        from ..bench.report.run import run

        return run(config, results, click.echo)

    path = click.Path(path_type=Path)
    files = click.Argument(["results"], nargs=-1, required=True, type=path, metavar="RESULT.json...")
    return FlagCommand(
        "report", config_flags(BenchReportConfig), {}, [files], report,
        "Make a page of results that `bench serve --save-result --save-detailed` saved; several are compared.",
        BENCH_OFFLINE,
    )  # fmt: skip


def _engine_values(given: dict[str, object]) -> dict[str, object]:
    fields = {flag.field for flag in engine_flags()}
    return {field: value for field, value in given.items() if field in fields}


def _engine_arguments(given: dict[str, object]) -> Sequence[str]:
    return spelled_out(engine_flags(), given)
