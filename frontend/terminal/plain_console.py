"""The consoles of all commands."""

from __future__ import annotations

from rich.console import Console


def plain_console(*, stderr: bool = False, no_color: bool | None = None) -> Console:
    """Return a console that shows text as it is: [brackets], :colons: and numbers mean nothing to it."""
    return Console(stderr=stderr, no_color=no_color, markup=False, emoji=False, highlight=False)
