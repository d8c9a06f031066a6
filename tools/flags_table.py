"""Write the table of flags into the documents that show it: `python -m tools.flags_table`; a test keeps them current.

A document shows it between the lines `<!-- flags: begin -->` and `<!-- flags: end -->`.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from pagewire.frontend.cli.flags import Flag, engine_flags, server_flags
from tools.file_sizes import ROOT

BEGIN, END = "<!-- flags: begin (made by python -m tools.flags_table) -->", "<!-- flags: end -->"
DOCUMENTS = ("docs/cli.md", "README.md")


def flags_table() -> str:
    """Return one Markdown table a config, in the order of `pagewire serve --help`."""
    parts = []
    for title, flags in groupby([*engine_flags(), *server_flags()], key=lambda flag: flag.title):
        rows = "\n".join(_row(flag) for flag in flags)
        parts.append(f"**{title}**\n\n| flag | default | |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _row(flag: Flag) -> str:
    name = f"`{flag.name}`" + (f", `--no-{flag.name.removeprefix('--')}`" if flag.is_switch else "")
    default = f"`{flag.shown_default}`" if flag.shown_default else ""
    return f"| {name} | {default} | {flag.description.replace('|', chr(92) + '|')} |"


def with_table(text: str) -> str:
    """Return the document with the current table; a document without the two marks is returned as it is."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    return f"{head}{begin}\n{flags_table()}\n{end}{tail}" if begin and end else text


def main() -> int:
    """Rewrite the documents."""
    for name in DOCUMENTS:
        path = ROOT / Path(name)
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
