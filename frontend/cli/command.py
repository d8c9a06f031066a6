"""What the commands are made of: flags from configs, help by section, one line for what there is not."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

import click

from pagewire.version import __version__

from .config_file import read_config_file
from .dotted import join_dotted
from .flags import Flag, FlagOption
from .needless import drop_flags, turn_switches
from .refused import SERVING, RefusedFlags, explain_unknown_flag

# Flags that take all values up to the next flag.
_LISTS = (
    "--served-model-name", "--lora-modules", "--allow-clients", "--allowed-origins", "--allowed-methods",
    "--allowed-headers", "--goodput", "--target",
)  # fmt: skip
# What editors and web pages make of two hyphens.
_PRINTED_DASHES = "\u2013\u2014\u2212"


def dashed(word: str) -> str:
    """Return the word as the parser compares it: `--max_num_seqs` is `--max-num-seqs`."""
    return word.replace("_", "-")


def version_option() -> click.Option:
    """Return the flag that shows the version."""

    def show(ctx: click.Context, _param: click.Parameter, is_asked: bool) -> None:
        if is_asked and not ctx.resilient_parsing:
            click.echo(f"pagewire {__version__}")
            ctx.exit()

    return click.Option(
        ["--version", "-v"], is_flag=True, is_eager=True, expose_value=False, callback=show,
        help="Show the version and exit.",
    )  # fmt: skip


class CommandGroup(click.Group):
    """A group of commands; what it does not have gets one line.

    Args:
        name: as it is typed.
        help_text: what its commands are for.
        commands: those that there are.
        explain: returns the line on an unknown command, from its name and those that there are.
        elsewhere: flags of commands, which may have been given to the group by mistake.
        sections: what the commands are for, to their names, in the order of the help text; without, they are one list.
    """

    def __init__(
        self,
        name: str,
        help_text: str,
        commands: Sequence[click.Command],
        *,
        explain: Callable[[str, Iterable[str]], str],
        elsewhere: Mapping[str, str],
        sections: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(
            name,
            {command.name or "": command for command in commands},
            help=help_text,
            context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": dashed},
            params=[version_option()],
        )
        self._explain = explain
        self._elsewhere = elsewhere
        self._sections = sections or {"Commands": sorted(self.commands)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in sections."""
        for title, names in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=100)) for name in names])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names."""
        name = dashed(args[0])
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.UsageError(self._explain(args[0], self.commands))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before the command."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as exc:
            raise click.UsageError(
                explain_unknown_flag(exc.option_name, ["--help", "--version"], self._elsewhere)
            ) from exc


class FlagCommand(click.Command):
    """A command with flags from configs: --config, help by section, one line for what it does not have.

    Args:
        flags: the flags, in the order of the help text.
        elsewhere: flags that other commands have, to the command.
        extra_params: what else the command takes.
        callback: runs it and returns the exit code.
        refused: what other engines' command of the same name has, and this one does not.
        examples: command lines to show at the end of the help text.
    """

    def __init__(
        self,
        name: str,
        flags: Sequence[Flag],
        elsewhere: Mapping[str, str],
        extra_params: Sequence[click.Parameter],
        callback: Callable[..., int],
        help_text: str,
        refused: RefusedFlags = SERVING,
        examples: Sequence[str] = (),
    ) -> None:
        self.flag_options = [FlagOption(flag) for flag in flags]
        self._elsewhere = elsewhere
        self._refused = refused
        self._examples = examples
        config_option = click.Option(
            ["--config", "config_file"], metavar="FILE.yaml", is_eager=True, expose_value=False,
            callback=self._read_config_file, type=click.Path(), help="YAML file of flags; the command line wins.",
        )  # fmt: skip
        extra_options = [param for param in extra_params if isinstance(param, click.Option)]
        arguments = [param for param in extra_params if not isinstance(param, click.Option)]
        self._general = [*extra_options, config_option, version_option()]
        super().__init__(
            name,
            params=[*arguments, *self.flag_options, *self._general],
            callback=callback,
            help=help_text,
            short_help=help_text.partition(".")[0] + ".",
            context_settings={"max_content_width": 110},
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the flags."""
        own = {name for option in self.flag_options for name in (*option.opts, *option.secondary_opts)}
        redundant = {**self._refused.redundant, "tokenizer": _models_named(args)}
        args, lines = drop_flags(args, self._refused.needless, redundant, own)
        for line in lines:
            click.echo(f"pagewire: {line}", err=True)
        _refuse_printed_dashes(args, own)
        args = turn_switches(args, {option.flag.name[2:] for option in self.flag_options if option.flag.is_switch})
        args = join_dotted(args, {option.flag.name for option in self.flag_options if option.flag.is_object})
        try:
            return super().parse_args(ctx, _repeat_flag_for_each_value(args))
        except click.NoSuchOption as exc:
            known = [name for param in self.params if isinstance(param, click.Option) for name in param.opts]
            typed = _as_typed(exc.option_name, args)
            raise click.UsageError(explain_unknown_flag(typed, known, self._elsewhere, self._refused)) from exc

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
            with formatter.section(textwrap.fill(title, formatter.width - 1)):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, a line each as it is typed."""
        if self._examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self._examples))

    def _read_config_file(self, ctx: click.Context, _param: click.Parameter, path: str | None) -> None:
        if path is not None:
            ctx.default_map = read_config_file(path, self.flag_options, self._elsewhere, self._refused)


def _models_named(args: Sequence[str]) -> list[str]:
    """Return what a command line names twice, as a model and once more: its tokenizer is the model's own anyway."""
    joined = [arg.partition("=")[2] for arg in args if arg.startswith("--model=")]
    return [name.lower() for name in (*joined, *(arg for arg in args if args.count(arg) > 1))]


def _refuse_printed_dashes(args: Sequence[str], known: Iterable[str]) -> None:
    for arg in args:
        meant = "--" + arg.lstrip(_PRINTED_DASHES)
        if arg.startswith(tuple(_PRINTED_DASHES)) and dashed(meant.partition("=")[0]) in known:
            raise click.UsageError(f"{arg} begins with a dash as print has it; type {meant}")


def _as_typed(flag: str, args: Sequence[str]) -> str:
    """Return an unknown flag whole: of `-ngl`, click says that there is no -n."""
    is_short = len(flag) == 2
    return next((arg for arg in args if arg.startswith(flag)), flag) if is_short else flag


def _repeat_flag_for_each_value(args: Sequence[str]) -> list[str]:
    """Return the arguments with `--goodput a b` spelled out as a flag before each value."""
    spread: list[str] = []
    flag, num_values = "", 0  # the list that the arguments stand in, and how many of its values came
    for index, arg in enumerate(args):
        if arg == "--":
            return [*spread, *args[index:]]
        if dashed(arg) in _LISTS:
            flag, num_values = dashed(arg), 0
        elif arg.startswith("-"):
            flag = ""
        elif flag:
            if num_values > 0:
                spread.append(flag)
            num_values += 1
        spread.append(arg)
    return spread
