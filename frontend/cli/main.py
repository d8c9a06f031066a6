"""The command line, `pagewire serve` and `pagewire engine`: the only reader of argv and of flags in the environment.

What the command line asks and can't be met is one line on stderr and exit code 2; what the machine lacks is exit
code 1. Only what `--help` needs is imported at the top: the commands import the rest when they run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import click

from pagewire.ipc.config import EngineConfig, ServerConfig
from pagewire.ipc.errors import ConfigError, StartError
from pagewire.version import __version__

from .config_file import read_config_file
from .flags import (
    Flag,
    FlagOption,
    build_engine_config,
    build_server_config,
    engine_flags,
    given_values,
    server_flags,
)
from .refused import explain_unknown_command, explain_unknown_flag

USAGE_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_SERVED_NAME = "--served-model-name"


class Launcher(Protocol):
    """What the commands start, each until it ends; the results are exit codes."""

    def serve(self, engine_config: EngineConfig, server_config: ServerConfig) -> int:
        """Run the HTTP frontend, with an engine of its own or attached to `server_config.engine`."""
        ...

    def run_engine(self, engine_config: EngineConfig, listen: str, insecure: bool) -> int:
        """Run the engine core without HTTP; clients attach at `listen`."""
        ...


def main() -> NoReturn:
    """Run the command line and exit: the entry point of the `pagewire` script."""
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
        result = _program(launcher).main(args=list(argv), prog_name="pagewire", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as exc:
        click.echo(exc.format_message(), err=True)
        return USAGE_ERROR
    except click.ClickException as exc:
        return _complain(exc.format_message(), USAGE_ERROR)
    except StartError as exc:
        return _complain(exc.message, exc.exit_code)
    except click.Abort:  # click's word for Ctrl-C
        return INTERRUPTED
    return result if isinstance(result, int) else 0


def _complain(message: str, exit_code: int) -> int:
    click.echo(f"pagewire: error: {' '.join(message.split())}", err=True)
    return exit_code


def _program(launcher: Launcher | None) -> click.Group:
    def launch() -> Launcher:
        if launcher is not None:
            return launcher
        from ..supervisor import launch as default_launcher

        return default_launcher

    program = _Program(
        name="pagewire",
        help="Serve large language models over HTTP and ZeroMQ, on small machines and large ones.",
        context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": _dashed},
        params=[_version_option()],
    )
    for command in (_serve_command(launch), _engine_command(launch)):
        program.add_command(command)
    return program


def _dashed(word: str) -> str:
    """Return the word as the parser compares it: `--max_num_seqs` is `--max-num-seqs`."""
    return word.replace("_", "-")


def _version_option() -> click.Option:
    def show(ctx: click.Context, _param: click.Parameter, is_asked: bool) -> None:
        if is_asked and not ctx.resilient_parsing:
            click.echo(f"pagewire {__version__}")
            ctx.exit()

    return click.Option(
        ["--version", "-v"], is_flag=True, is_eager=True, expose_value=False, callback=show,
        help="Show the version and exit.",
    )  # fmt: skip


class _Program(click.Group):
    """The group of commands; an unknown one gets one line."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = _dashed(args[0])
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.UsageError(explain_unknown_command(args[0], self.commands))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as exc:
            known = ["--help", "--version"]
            elsewhere = {flag.name: "pagewire serve" for flag in [*engine_flags(), *server_flags()]}
            raise click.UsageError(explain_unknown_flag(exc.option_name, known, elsewhere)) from exc


class _FlagCommand(click.Command):
    """A command with flags from configs: --config, help by section, one line for what it does not have.

    Args:
        flags: the flags, in the order of the help text.
        elsewhere: flags that other commands have, to the command.
    """

    def __init__(
        self,
        name: str,
        flags: Sequence[Flag],
        elsewhere: Mapping[str, str],
        extra_options: Sequence[click.Option],
        callback: Callable[..., int],
        help_text: str,
    ) -> None:
        self.flag_options = [FlagOption(flag) for flag in flags]
        self._elsewhere = elsewhere
        config_option = click.Option(
            ["--config", "config_file"], metavar="FILE.yaml", is_eager=True, expose_value=False,
            callback=self._read_config_file, help="YAML file of flags; the command line wins.",
        )  # fmt: skip
        self._general = [*extra_options, config_option, _version_option()]
        super().__init__(
            name,
            params=[
                click.Argument(["model_tag"], required=False, metavar="[MODEL]"),
                *self.flag_options,
                *self._general,
            ],
            callback=callback,
            help=help_text,
            short_help=help_text.partition(".")[0] + ".",
            context_settings={"max_content_width": 110},
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, _repeat_flag_for_each_name(args))
        except click.NoSuchOption as exc:
            known = [name for param in self.params if isinstance(param, click.Option) for name in param.opts]
            raise click.UsageError(explain_unknown_flag(exc.option_name, known, self._elsewhere)) from exc

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags in sections, one a config."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.flag_options:
            record = option.get_help_record(ctx)
            assert record is not None
            sections.setdefault(option.flag.title, []).append(record)
        general = [record for option in [*self._general, self.get_help_option(ctx)] if option is not None
                   for record in [option.get_help_record(ctx)] if record is not None]  # fmt: skip
        for title, records in [*sections.items(), ("General", general)]:
            with formatter.section(title):
                formatter.write_dl(records)

    def _read_config_file(self, ctx: click.Context, _param: click.Parameter, path: str | None) -> None:
        if path is not None:
            ctx.default_map = read_config_file(path, self.flag_options, self._elsewhere)


def _repeat_flag_for_each_name(args: Sequence[str]) -> list[str]:
    """Return the arguments with `--served-model-name a b` spelled out as a flag before each name."""
    spread: list[str] = []
    names = -1  # seen since the flag; -1 when not behind it
    for index, arg in enumerate(args):
        if arg == "--":
            return [*spread, *args[index:]]
        if _dashed(arg) == _SERVED_NAME:
            names = 0
        elif arg.startswith("-"):
            names = -1
        elif names >= 0:
            if names > 0:
                spread.append(_SERVED_NAME)
            names += 1
        spread.append(arg)
    return spread


def _serve_command(launch: Callable[[], Launcher]) -> click.Command:
    def serve(model_tag: str | None, **_: Any) -> int:  # Any: the flags, read from the context with their sources
        given = _collect(model_tag)
        server_config = build_server_config(given)
        if server_config.engine is not None:
            _refuse_engine_flags(server_config.engine, given)
        engine_config = build_engine_config(given)
        return launch().serve(engine_config, server_config)

    return _FlagCommand(
        "serve", [*engine_flags(), *server_flags()], {"--listen": "pagewire engine", "--insecure": "pagewire engine"},
        [], serve, "Serve MODEL over HTTP with OpenAI's API. Without MODEL: the packaged SmolLM2-135M-Instruct.",
    )  # fmt: skip


def _engine_command(launch: Callable[[], Launcher]) -> click.Command:
    def engine(model_tag: str | None, listen: str, insecure: bool, **_: Any) -> int:  # Any: as above
        given = _collect(model_tag)
        engine_config = build_engine_config(given)
        return launch().run_engine(engine_config, listen, insecure)

    options = [
        click.Option(
            ["--listen"], required=True, metavar="ADDRESS", help="Where clients attach: ipc:///path or tcp://host:port."
        ),
        click.Option(
            ["--insecure"], is_flag=True, help="Allow tcp://, where anyone who reaches the port may use the engine."
        ),
    ]
    elsewhere = {flag.name: "pagewire serve" for flag in server_flags()}
    return _FlagCommand(
        "engine", engine_flags(), elsewhere, options, engine,
        "Run the engine for MODEL without HTTP. EngineClient, or `pagewire serve --engine ADDRESS`, attaches to it.",
    )  # fmt: skip


def _collect(model_tag: str | None) -> dict[str, object]:
    """Return the current command's given values by field name, with the positional MODEL as --model."""
    ctx = click.get_current_context()
    assert isinstance(ctx.command, _FlagCommand)
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


def _refuse_engine_flags(address: str, given: Mapping[str, object]) -> None:
    for flag in engine_flags():
        if flag.field in given and flag.section != "engine":
            raise ConfigError(f"{flag.name} is decided by the engine at {address}; give it to `pagewire engine`.")
