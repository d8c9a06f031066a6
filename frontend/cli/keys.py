"""`pagewire keys`: the keys of engines that listen on tcp:// and of their clients."""

from __future__ import annotations

from pathlib import Path

import click

from .command import CommandGroup
from .refused import explain_unknown_keys_command

_DEFAULT_NAMES = ("engine", "client")


def keys_command() -> click.Group:
    """Return the group."""
    return CommandGroup(
        "keys",
        "Make keys for engines that listen on tcp:// and for their clients.",
        [_make_command()],
        explain=explain_unknown_keys_command,
        elsewhere={},
    )


def _make_command() -> click.Command:
    def make(directory: str, names: tuple[str, ...]) -> int:
        from ..client.key_files import make_key_files

        for path in make_key_files(Path(directory), names or _DEFAULT_NAMES):
            click.echo(path)
        return 0

    return click.Command(
        "make",
        params=[
            click.Argument(["directory"], metavar="DIR"),
            click.Argument(["names"], nargs=-1, metavar="[NAME]..."),
        ],
        callback=make,
        help="Make a key pair in DIR for each NAME (engine and client by default): NAME.key, which others may have, "
        "and NAME.key_secret, which stays with NAME. Files that are there already are never written over.",
        short_help="Make key pairs.",
    )
