"""`pagewire models`: the group of commands about the models of this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ..terminal.models.config import ListConfig, RemoveConfig, ShowConfig, StoreConfig
from ..terminal.safe_text import safe_text
from .command import CommandGroup, FlagCommand
from .flags import build_config, config_flags, given_values
from .refused import RefusedFlags, explain_unknown_models_command
from .stored_names import complete_model, complete_model_or_path

_NOTHING = RefusedFlags(not_yet={}, renamed={"f": "use --yes", "force": "use --yes", "cache-dir": "use --download-dir"})
T = TypeVar("T")
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem] | list[str]]


def models_command() -> click.Group:
    """Return the group."""
    return CommandGroup(
        "models",
        "List, fetch, show and remove models. MODEL is a hub id (Qwen/Qwen3-0.6B), a GGUF file on the hub "
        "(org/repo:Q4_K_M), or the packaged SmolLM2-135M-Instruct.",
        [_list_command(), _pull_command(), _remove_command(), _show_command()],
        explain=explain_unknown_models_command,
        elsewhere={},
    )


def _list_command() -> click.Command:
    def list_models(**_: Any) -> int:  # Any: the flags, read from the context with their sources
        from ..terminal.models.store import show_list

        return show_list(_config(ListConfig), _say)

    return FlagCommand(
        "list", config_flags(ListConfig), {}, [], list_models,
        "List the models that were fetched: their names, sizes and places.", _NOTHING,
    )  # fmt: skip


def _pull_command() -> click.Command:
    def pull(model: str, **_: Any) -> int:  # Any: as above
        config = _config(StoreConfig)
        from ..terminal.models.store import pull

        return pull(model, config, _say)

    return FlagCommand(
        "pull", config_flags(StoreConfig), {}, [_model()], pull,
        "Fetch MODEL, so that it is served without a network. A download that broke goes on where it broke, and the "
        "weights' digests are checked.",
        _NOTHING,
        examples=("pagewire models pull Qwen/Qwen3-0.6B", "pagewire models pull Qwen/Qwen3-0.6B-GGUF:Q8_0"),
    )  # fmt: skip


def _remove_command() -> click.Command:
    def remove(models: tuple[str, ...], **_: Any) -> int:  # Any: as above
        config = _config(RemoveConfig)
        from ..terminal.models.store import remove

        return remove(models, config, _say, click.confirm)

    argument = click.Argument(["models"], nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_model)
    return FlagCommand(
        "rm", config_flags(RemoveConfig), {}, [argument], remove, "Remove models from this machine.", _NOTHING
    )


def _show_command() -> click.Command:
    def show(model: str, **_: Any) -> int:  # Any: as above
        config = _config(ShowConfig)
        from ..terminal.models.show import show

        return show(model, config, _say)

    return FlagCommand(
        "show", config_flags(ShowConfig), {}, [_model(complete_model_or_path)], show,
        "Say what MODEL is: architecture, parameters, quantization, context, chat template, what it takes. Of a hub "
        "model that is not here, config.json is fetched and nothing else.",
        _NOTHING,
    )  # fmt: skip


def _say(line: str) -> None:
    """Print a line; what a repository's files say is shown to a terminal, not obeyed by it."""
    click.echo(safe_text(line) if sys.stdout.isatty() else line)


def _model(complete: Complete = complete_model) -> click.Argument:
    return click.Argument(["model"], metavar="MODEL", shell_complete=complete)


def _config(config: Callable[..., T]) -> T:
    ctx = click.get_current_context()
    assert isinstance(ctx.command, FlagCommand)
    assert isinstance(config, type)
    return build_config(config, given_values(ctx, ctx.command.flag_options))
