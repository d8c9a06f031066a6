"""Write the pages that list all there is of something: `python -m tools.reference_pages`. A test keeps them so.

Endpoints come from the description that /openapi.json is made of, commands from the command line itself, decisions from
the first lines of their pages. A page shows its tables between the lines `<!-- NAME: begin -->` and
`<!-- NAME: end -->`; what stands around them is written by hand. Metrics have `tools.metrics_table`, the flags of
`serve`, `engine`, `bench` and `quantize` `tools.flags_table`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator

import click

from pagewire.frontend.cli.command import FlagCommand
from pagewire.frontend.cli.flags import Flag, engine_flags, server_flags
from pagewire.frontend.cli.main import program
from pagewire.frontend.openai.bodies.operations import OPERATIONS, Operation
from tools.file_sizes import ROOT
from tools.flags_table import flags_table

DOCS = ROOT / "docs"
_HEAD = "<!-- {}: begin (made by python -m tools.reference_pages) -->"
_FOOT = "<!-- {}: end -->"
# Commands whose flags stand on a page of their own, by `tools.flags_table`.
_PAGES: dict[tuple[str, ...], str] = {
    ("serve",): "[the command line](cli.md#flags)",
    ("engine",): "[the command line](cli.md#flags)",
    **{("bench", name): "[benchmarks](benchmarking.md)"
       for name in ("serve", "throughput", "latency", "startup", "kernels")},
    ("quantize",): "[quantized weights](quantization.md)",
}  # fmt: skip


def every_command() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command with its words: ("bench", "serve")."""

    def below(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
        for name, command in sorted(group.commands.items()):
            if isinstance(command, click.Group):
                yield from below(command, (*words, name))
            else:
                yield (*words, name), command

    return below(program(), ())


def every_flag() -> set[str]:
    """Return all flags of all commands, as they may be typed."""
    flags = {"--help", "-h", "--version", "-v"}
    for _, command in every_command():
        for param in command.params:
            if isinstance(param, click.Option):
                flags.update((*param.opts, *param.secondary_opts))
    return flags


def endpoints_table() -> str:
    """Return a row for each operation: method and path, what it does, its body, its statuses, whether it is open."""
    head = ["| endpoint | | body | statuses | key |", "|---|---|---|---|---|"]
    return "\n".join([*head, *map(_operation_row, OPERATIONS)])


def _operation_row(operation: Operation) -> str:
    body = f"`{operation.body.__name__}`" if operation.body else ", ".join(f"`?{name}=`" for name in operation.query)
    statuses = sorted({200, *operation.errors})
    return (
        f"| `{operation.method.upper()} {operation.path}` | {operation.summary} | {body} | "
        f"{', '.join(map(str, statuses))} | {'open' if operation.is_open else 'needed'} |"
    )


def commands_tables() -> str:
    """Return a section for each command: what it does, how it is typed, its own flags."""
    return "\n\n".join(_command_section(words, command) for words, command in every_command())


def _command_section(words: tuple[str, ...], command: click.Command) -> str:
    parts = [f"## {' '.join(words)}", _help_text(command)]
    arguments = [param.make_metavar(_CONTEXT) for param in command.params if isinstance(param, click.Argument)]
    parts.append("\n".join(["```", " ".join(["pagewire", *words, "[FLAGS]", *arguments]), "```"]))
    if words in _PAGES:
        parts.append(f"Flags: {_PAGES[words]}.")
    else:
        parts.extend(_own_flags(command))
    return "\n\n".join(parts)


_CONTEXT = click.Context(click.Command("pagewire"))


def _own_flags(command: click.Command) -> Iterator[str]:
    if not isinstance(command, FlagCommand):
        options = [param for param in command.params if isinstance(param, click.Option)]
        if options:
            yield "\n".join(["| flag | |", "|---|---|", *(f"| `{each.opts[-1]}` | {each.help} |" for each in options)])
        return
    own = [option.flag for option in command.flag_options if not _is_of_engine(option.flag)]
    if own:
        yield flags_table(own).rstrip()
    if len(own) < len(command.flag_options):
        yield "Besides, the flags of the engine that a MODEL starts: [the command line](cli.md#flags)."


def _is_of_engine(flag: Flag) -> bool:
    return flag in _OF_ENGINE


_OF_ENGINE = [*engine_flags(), *server_flags()]


def _help_text(command: click.Command) -> str:
    """Return its help as Markdown; what click is told to leave as it is (\\b) stands as code."""
    text, _, verbatim = (command.help or "").partition("\n\n\b\n")
    paragraph = " ".join(text.split()).replace("<", "&lt;")
    return f"{paragraph}\n\n```\n{verbatim}\n```" if verbatim else paragraph


def decisions_table() -> str:
    """Return a line for each decision, in their order."""
    lines = []
    for path in sorted((DOCS / "adr").glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0]
        number, name = re.fullmatch(r"# (\d+)\. (.+)", title).groups()  # type: ignore[union-attr]  # a test keeps the form
        lines.append(f"{number}. [{name}]({path.name})")
    return "\n".join(lines)


PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "endpoints.md": ("endpoints", endpoints_table),
    "commands.md": ("commands", commands_tables),
    "adr/index.md": ("decisions", decisions_table),
}


def with_tables(name: str, text: str) -> str:
    """Return the page with its part that is made current."""
    word, make = PAGES[name]
    head, begin, rest = text.partition(_HEAD.format(word))
    _, end, tail = rest.partition(_FOOT.format(word))
    assert begin, f"docs/{name} has no line {_HEAD.format(word)}"
    assert end, f"docs/{name} has no line {_FOOT.format(word)}"
    return f"{head}{begin}\n\n{make()}\n\n{end}{tail}"


def main() -> int:
    """Rewrite the pages."""
    for name in PAGES:
        path = DOCS / name
        path.write_text(with_tables(name, path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
