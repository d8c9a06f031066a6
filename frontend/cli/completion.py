"""`pagewire completion`: a script that has a shell complete commands, flags, their words and models."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_PAGEWIRE_COMPLETE"
_HINTS = {
    "bash": "echo 'eval \"$(pagewire completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(pagewire completion zsh)\"' >> ~/.zshrc",
    "fish": "pagewire completion fish > ~/.config/fish/completions/pagewire.fish",
}


def completion_command() -> click.Command:
    """Return the command."""

    def completion(shell: str) -> int:
        completing = get_completion_class(shell)
        assert completing is not None
        ctx = click.get_current_context()
        click.echo(completing(ctx.find_root().command, {}, "pagewire", _VARIABLE).source())
        return 0

    return click.Command(
        "completion",
        params=[click.Argument(["shell"], type=click.Choice(_SHELLS), metavar="bash|zsh|fish")],
        callback=completion,
        help="Print the script that has a shell complete commands, flags and the names of fetched models.\n\n\b\n"
        + "\n".join(f"{shell}: {hint}" for shell, hint in _HINTS.items()),
        short_help="Print a script that has a shell complete this command line.",
    )
