"""`pagewire quantize`: a smaller copy of a checkpoint."""

from __future__ import annotations

from typing import Any

import click

from ..quantize.config import QuantizeConfig
from .command import FlagCommand
from .flags import build_config, config_flags, given_values
from .refused import RefusedFlags


def quantize_command() -> click.Command:
    """Return the command."""

    def quantize(model: str, **_: Any) -> int:  # Any: the flags, read from the context with their sources
        ctx = click.get_current_context()
        assert isinstance(ctx.command, FlagCommand)
        config = build_config(QuantizeConfig, given_values(ctx, ctx.command.flag_options))
        from ..quantize.run import run

        return run(model, config)

    return FlagCommand(
        "quantize", config_flags(QuantizeConfig), {}, [click.Argument(["model"], metavar="MODEL")], quantize,
        "Write a copy of MODEL with linear layers rounded to 4 or 8 bits, which serves here and elsewhere. MODEL is a "
        "directory or a hub id with safetensors weights. It takes seconds to minutes, and with "
        "--calibrate loses less.",
        _REFUSED,
    )  # fmt: skip


_REFUSED = RefusedFlags(
    not_yet={"ignore": "all linear layers are rounded but the output layer"},
    renamed={
        "scheme": "use --to",
        "bits": "use --to int4 or --to int8",
        "quantization": "use --to",
        "output": "use --out",
        "output-dir": "use --out",
        "device": "it runs on the CPU",
        "dataset": "use --calibrate with a file of text",
        "num-samples": "use --calibration-tokens",
    },
)
