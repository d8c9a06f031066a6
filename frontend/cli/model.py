"""The MODEL that commands take as an argument or as a flag."""

from __future__ import annotations

import click

from pagewire.ipc.errors import ConfigError

from .command import FlagCommand
from .flags import given_values
from .stored_names import complete_model_or_path

_SERVED_NAME = "--served-model-name"


def model_argument() -> click.Argument:
    """Return the positional MODEL."""
    return click.Argument(["model_tag"], required=False, metavar="[MODEL]", shell_complete=complete_model_or_path)


def values_with_model(model_tag: str | None) -> dict[str, object]:
    """Return the current command's given values by field name, with the positional MODEL as --model.

    Raises:
        ConfigError: MODEL is empty, contradicts --model, or was swallowed by a flag that takes several values.
    """
    ctx = click.get_current_context()
    assert isinstance(ctx.command, FlagCommand)
    given = given_values(ctx, ctx.command.flag_options)
    if model_tag == "":
        raise ConfigError("MODEL is empty; leave it out for the packaged SmolLM2-135M-Instruct.")
    if model_tag is not None:
        from_command_line = ctx.get_parameter_source("model") is click.core.ParameterSource.COMMANDLINE
        if from_command_line and given["model"] != model_tag:
            raise ConfigError(f"MODEL {model_tag} and --model {given['model']} differ; give one of them.")
        given["model"] = model_tag
    names = given.get("served_model_name")
    if "model" not in given and isinstance(names, tuple) and len(names) > 1:
        raise ConfigError(f"{_SERVED_NAME} took {' '.join(names)}, and no MODEL is left; give it as --model MODEL.")
    return given
