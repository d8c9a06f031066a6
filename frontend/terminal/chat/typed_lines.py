"""What a person types: lines with history and completion (readline), several of them where one is not enough."""

from __future__ import annotations

import contextlib
import os
import readline
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_MAX_HISTORY = 2000
_QUOTES = '"""'


def default_history_file() -> Path:
    """Return where typed lines are kept: in $XDG_STATE_HOME/pagewire, or ~/.local/state/pagewire."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "pagewire" / "chat_history"


@contextmanager
def keeping_history(path: Path, completions: Sequence[str]) -> Iterator[None]:
    """Have the arrow keys bring lines of earlier chats, and Tab complete commands; keep this chat's lines at the end.

    A history that can't be read or written is none: the chat goes on without.
    """
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_MAX_HISTORY)
    readline.set_completer_delims(" ")
    readline.set_completer(_completer(completions))
    # Some builds of Python bring another library under the same name.
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.write_history_file(path)
            path.chmod(0o600)  # what was typed is nobody else's business


def read_message(ask: Callable[[str], str] = input) -> str:
    r"""Return the next message.

    A line that ends in \ goes on in the next one. From a line that begins with three quotes, all lines up to the next
    three quotes are one message.

    Args:
        ask: prints a prompt and returns a line.

    Raises:
        EOFError: the input is over.
    """
    line = ask("> ")
    if line.lstrip().startswith(_QUOTES):
        return _quoted(line.lstrip().removeprefix(_QUOTES), ask)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1].removesuffix("\\")
        lines.append(ask(". "))
    return "\n".join(lines).strip()


def _quoted(first: str, ask: Callable[[str], str]) -> str:
    lines = [first]
    while _QUOTES not in lines[-1]:
        lines.append(ask(". "))
    lines[-1] = lines[-1].partition(_QUOTES)[0]
    return "\n".join(lines).strip()


def _completer(words: Sequence[str]) -> Callable[[str, int], str | None]:
    def complete(text: str, state: int) -> str | None:
        if not text.startswith("/"):
            return None
        matches = [word for word in words if word.startswith(text)]
        return matches[state] + " " if state < len(matches) else None

    return complete
