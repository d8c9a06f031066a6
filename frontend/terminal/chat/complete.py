"""`pagewire complete`: a prompt, and the text that follows it, as it comes."""

from __future__ import annotations

import sys

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import EngineError, MachineError, RequestError

from ..open_connection import open_connection
from ..safe_text import safe_text
from .answer import answer_plainly
from .config import CompleteConfig

_PATH = "/v1/completions"


def run(prompt: str | None, config: CompleteConfig, engine_config: EngineConfig | None) -> int:
    """Print the text that follows a prompt; return the exit code.

    Args:
        prompt: by default, what the standard input holds.
        config: how to go on.
        engine_config: of the engine to start, if a model was named.

    Raises:
        StartError: there is no prompt, no server or no such model, or the request fails.
    """
    is_terminal = sys.stdout.isatty()

    def note(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    def write(text: str) -> None:
        sys.stdout.write(safe_text(text) if is_terminal else text)
        sys.stdout.flush()

    if prompt is None:
        if sys.stdin.isatty():
            note("The prompt, up to Ctrl-D:")
        prompt = sys.stdin.read().removesuffix("\n")
    if not prompt:
        raise MachineError("there is no prompt: give one, or pipe it in.")
    with open_connection(config.answer.url, config.answer.api_key, engine_config, note) as connection:
        body = {
            "model": connection.choose_model(config.answer.model_name),
            "prompt": prompt,
            "stream": True,
            **config.answer.settings,
            **({"stop": list(config.stop)} if config.stop else {}),
        }
        if config.echo:
            write(prompt)
        try:
            answer_plainly(connection, _PATH, body, write)
        except (RequestError, EngineError) as exc:
            raise MachineError(exc.message) from exc
        finally:
            write("\n")
    return 0
