"""`pagewire top`: a server's figures, live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..terminal.top.config import TopConfig
from .command import FlagCommand
from .flags import build_config, config_flags, given_values
from .refused import RefusedFlags

RunTop = Callable[[TopConfig], int]

_REFUSED = RefusedFlags(not_yet={}, renamed=dict.fromkeys(("host", "port", "base-url"), "use --url http://HOST:PORT"))


def top_command(run_top: RunTop | None = None) -> click.Command:
    """Return the command; `run_top` is what it runs, that of `frontend/terminal/top/run.py` if None."""

    def top(**_: Any) -> int:  # Any: the flags, read from the context with their sources
        ctx = click.get_current_context()
        assert isinstance(ctx.command, FlagCommand)
        config = build_config(TopConfig, given_values(ctx, ctx.command.flag_options))
        if run_top is not None:
            return run_top(config)
        from ..terminal.top.run import run

        return run(config)

    return FlagCommand(
        "top", config_flags(TopConfig), {}, [], top,
        "Watch a server: requests, throughput, latencies, KV cache, restarts. q quits. It reads /metrics, which "
        "servers of vLLM have, too.",
        _REFUSED,
        examples=("pagewire top", "pagewire top --url http://gpu-host:8000 --interval 0.5", "pagewire top --once"),
    )  # fmt: skip
