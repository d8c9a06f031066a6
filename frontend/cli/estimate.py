"""`pagewire estimate`: what a model takes and how fast it can be, on paper."""

from __future__ import annotations

from typing import Any

import click

from ..estimate.config import EstimateConfig
from .command import FlagCommand
from .flags import build_config, config_flags, given_values
from .refused import RefusedFlags


def estimate_command() -> click.Command:
    """Return the command."""

    def estimate(model: str, **_: Any) -> int:  # Any: the flags, read from the context with their sources
        ctx = click.get_current_context()
        assert isinstance(ctx.command, FlagCommand)
        config = build_config(EstimateConfig, given_values(ctx, ctx.command.flag_options))
        from ..estimate.run import run

        return run(model, config, click.echo)

    return FlagCommand(
        "estimate", config_flags(EstimateConfig), {}, [click.Argument(["model"], metavar="MODEL")], estimate,
        "Say what MODEL takes and how fast it can be on a device, on paper. MODEL is a built-in shape like "
        "llama-3.1-8b, a directory, a hub id or a GGUF file; of a hub model only config.json is fetched.",
        _REFUSED,
    )  # fmt: skip


_REFUSED = RefusedFlags(
    not_yet={},
    renamed={
        "max-model-len": "use --context-len",
        "quantization": "use --weights",
        "dtype": "use --weights",
        "batch-size": "use --num-requests",
        "concurrency": "use --num-requests",
        "input-len": "it is what --context-len leaves beside --output-len",
    },
)
