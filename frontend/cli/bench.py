"""`pagewire bench`: the group of benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..bench.serving.config import BenchServeConfig
from .command import CommandGroup, FlagCommand
from .flags import bench_serve_flags, build_bench_serve_config, given_values
from .refused import BENCH_SERVE, explain_unknown_benchmark

RunBenchServe = Callable[[BenchServeConfig, Callable[[str], None]], int]


def bench_command(run_serve: RunBenchServe | None = None) -> click.Group:
    """Return the group.

    Args:
        run_serve: what `bench serve` runs, with a function that prints a line; that of
            `frontend/bench/serving/serve.py` if None.
    """
    return CommandGroup(
        "bench",
        "Measure a server: latencies and throughput under load.",
        [_serve_command(run_serve)],
        explain=explain_unknown_benchmark,
        elsewhere={flag.name: "pagewire bench serve" for flag in bench_serve_flags()},
    )


def _serve_command(run_serve: RunBenchServe | None) -> click.Command:
    def serve(**_: Any) -> int:  # Any: the flags, read from the context with their sources
        ctx = click.get_current_context()
        assert isinstance(ctx.command, FlagCommand)
        config = build_bench_serve_config(given_values(ctx, ctx.command.flag_options))
        if run_serve is not None:
            return run_serve(config, click.echo)
        from ..bench.serving.serve import run

        return run(config, click.echo)

    return FlagCommand(
        "serve", bench_serve_flags(), {}, [], serve,
        "Send requests to a server with OpenAI's API, and print latencies and throughput.", BENCH_SERVE,
    )  # fmt: skip
