"""The command line, `pagewire serve` and its sister commands: the only reader of argv and of flags set elsewhere.

What the command line asks and can't be met is one line on stderr and exit code 2; what the machine lacks is exit
code 1. Only what `--help` needs is imported at the top: the commands import the rest when they run.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import click

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import ConfigError, PagewireError, StartError
from pagewire.ipc.logs import current_log_format
from pagewire.ipc.server_config import ListenConfig, ServerConfig

from ..terminal.safe_text import safe_text
from .bench import bench_command
from .chat import chat_command, complete_command
from .collect_env import collect_env_command
from .command import CommandGroup, FlagCommand
from .completion import completion_command
from .estimate import estimate_command
from .flags import (
    build_engine_config,
    build_listen_config,
    build_server_config,
    engine_flags,
    listen_flags,
    server_flags,
)
from .keys import keys_command
from .model import model_argument, values_with_model
from .models import models_command
from .quantize import quantize_command
from .refused import explain_unknown_command
from .run_batch import run_batch_command
from .top import top_command

FAILED = 1
USAGE_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it

# Among the engine's flags, what a frontend that attaches to one decides for itself: how long its own drain may take,
# and what it puts in where requests give no value.
_OWN_OF_FRONTENDS = frozenset({"shutdown_timeout", "generation_config", "override_generation_config"})

_SECTIONS = {
    "Serve": ("serve", "engine", "keys"),
    "Ask": ("chat", "complete", "run-batch"),
    "Models": ("models", "quantize", "estimate"),
    "Measure": ("top", "bench"),
    "This machine": ("completion", "collect-env"),
}


class Launcher(Protocol):
    """What the commands start, each until it ends; the results are exit codes."""

    def serve(self, engine_config: EngineConfig, server_config: ServerConfig) -> int:
        """Run the HTTP frontend, with an engine of its own or attached to `server_config.engine`."""
        ...

    def run_engine(self, engine_config: EngineConfig, listen_config: ListenConfig) -> int:
        """Run the engine core without HTTP; clients attach as `listen_config` says."""
        ...


def main() -> NoReturn:
    """Run the command line and exit: the entry point of the `pagewire` script."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            # What the terminal's encoding lacks, or a text in another one, is no reason to end.
            stream.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str], launcher: Launcher | None = None) -> int:
    """Run one command line.

    Args:
        argv: the arguments after the program's name.
        launcher: what starts the processes; `pagewire.frontend.supervisor.launch` if None.

    Returns:
        The exit code.
    """
    try:
        result = program(launcher).main(args=list(argv), prog_name="pagewire", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as exc:
        click.echo(exc.format_message(), err=True)
        return USAGE_ERROR
    except click.ClickException as exc:
        return _complain(exc.format_message(), USAGE_ERROR)
    except StartError as exc:
        return _complain(exc.message, exc.exit_code)
    except PagewireError as exc:  # what a server answered to a command
        return _complain(exc.message, FAILED)
    except click.Abort:  # click's word for Ctrl-C
        return INTERRUPTED
    return result if isinstance(result, int) else 0


def _complain(message: str, exit_code: int) -> int:
    line = " ".join(safe_text(message).split())
    if current_log_format() == "json":  # the server had begun to log
        logging.getLogger("pagewire").error("%s", line)
    else:
        click.echo(f"pagewire: error: {line}", err=True)
    return exit_code


def program(launcher: Launcher | None = None) -> click.Group:
    """Return the whole command line; see `run` for `launcher`."""

    def launch() -> Launcher:
        if launcher is not None:
            return launcher
        from ..supervisor import launch as default_launcher

        return default_launcher

    return CommandGroup(
        "pagewire",
        "Serve large language models over HTTP and ZeroMQ, on small machines and large ones.",
        [
            _serve_command(launch),
            _engine_command(launch),
            chat_command(),
            complete_command(),
            run_batch_command(),
            models_command(),
            top_command(),
            completion_command(),
            collect_env_command(),
            quantize_command(),
            bench_command(),
            estimate_command(),
            keys_command(),
        ],
        explain=explain_unknown_command,
        sections=_SECTIONS,
        elsewhere={flag.name: "pagewire serve" for flag in [*engine_flags(), *server_flags()]},
    )


def _serve_command(launch: Callable[[], Launcher]) -> click.Command:
    def serve(model_tag: str | None, **_: Any) -> int:  # Any: the flags, read from the context with their sources
        given = values_with_model(model_tag)
        server_config = build_server_config(given)
        if server_config.engine is not None:
            _refuse_engine_flags(server_config.engine, given)
        engine_config = build_engine_config(given)
        return launch().serve(engine_config, server_config)

    flags = [*engine_flags(), *server_flags()]
    elsewhere = {flag.name: "pagewire engine" for flag in listen_flags()}
    return FlagCommand(
        "serve", flags, elsewhere, [model_argument()], serve,
        "Serve MODEL over HTTP with OpenAI's API. Without MODEL: the packaged SmolLM2-135M-Instruct.",
    )  # fmt: skip


def _engine_command(launch: Callable[[], Launcher]) -> click.Command:
    def engine(model_tag: str | None, **_: Any) -> int:  # Any: as above
        given = values_with_model(model_tag)
        return launch().run_engine(build_engine_config(given), build_listen_config(given))

    flags = [*listen_flags(), *engine_flags()]
    elsewhere = {flag.name: "pagewire serve" for flag in server_flags()}
    return FlagCommand(
        "engine", flags, elsewhere, [model_argument()], engine,
        "Run the engine for MODEL without HTTP. EngineClient, or `pagewire serve --engine ADDRESS`, attaches to it.",
    )  # fmt: skip


def _refuse_engine_flags(address: str, given: Mapping[str, object]) -> None:
    for flag in engine_flags():
        if flag.field in given and flag.section != "engine" and flag.field not in _OWN_OF_FRONTENDS:
            raise ConfigError(f"{flag.name} is decided by the engine at {address}; give it to `pagewire engine`.")
