"""`pagewire collect-env`: what a bug report should say of a machine."""

from __future__ import annotations

import click


def collect_env_command() -> click.Command:
    """Return the command."""

    def collect_env() -> int:
        from ..terminal.environment import run

        return run(click.echo)

    return click.Command(
        "collect-env",
        callback=collect_env,
        help="Print what a bug report should say of this machine: versions, CPU, memory, GPUs, variables. Secrets are "
        "left out.",
        short_help="Print what a bug report should say of this machine.",
    )
