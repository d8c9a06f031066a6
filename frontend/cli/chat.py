"""`pagewire chat` and `pagewire complete`: flags of the conversation, and of the engine that a MODEL starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import click

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import ConfigError

from ..terminal.chat.config import ChatConfig, CompleteConfig
from .command import FlagCommand
from .flags import Flag, build_config, build_engine_config, config_flags, engine_flags, given_values
from .model import model_argument, values_with_model
from .refused import SERVING

RunChat = Callable[[ChatConfig, EngineConfig | None], int]
RunComplete = Callable[[str | None, CompleteConfig, EngineConfig | None], int]

# llama.cpp's names.
_RENAMED = {
    "p": "use --quick, or give PROMPT to `pagewire complete`",
    "prompt": "use --quick, or give PROMPT to `pagewire complete`",
    "n": "use --max-tokens",
    "n-predict": "use --max-tokens",
    "temp": "use --temperature",
    "sys": "use --system-prompt",
    "base-url": "use --url",
    "host": "use --url http://HOST:PORT",
    "port": "use --url http://HOST:PORT",
}
_REFUSED = SERVING._replace(renamed={**SERVING.renamed, **_RENAMED})


def chat_command(run_chat: RunChat | None = None) -> click.Command:
    """Return the command; `run_chat` is what it runs, that of `frontend/terminal/chat/run.py` if None."""

    def chat(model_tag: str | None, **_: Any) -> int:  # Any: the flags, read from the context with their sources
        given = values_with_model(model_tag)
        config = build_config(ChatConfig, given)
        engine_config = engine_to_start(given, config.answer.url)
        if run_chat is not None:
            return run_chat(config, engine_config)
        from ..terminal.chat.run import run

        return run(config, engine_config)

    return FlagCommand(
        "chat", flags_with_engine(ChatConfig), {}, [model_argument()], chat,
        "Talk to a model in the terminal: that of the server at --url, or MODEL in an engine of this command's own. "
        "Without both: the server at port 8000 of this machine, or the packaged model if there is none.",
        _REFUSED,
        examples=(
            "pagewire chat",
            "pagewire chat --url http://gpu-host:8000 --system-prompt 'Be brief.'",
            "pagewire chat Qwen/Qwen3-0.6B --max-model-len 4k",
            "git diff | pagewire chat --quick 'Write a commit message for this change.'",
        ),
    )  # fmt: skip


def complete_command(run_complete: RunComplete | None = None) -> click.Command:
    """Return the command; `run_complete` is what it runs, that of `frontend/terminal/chat/complete.py` if None."""

    def complete(texts: tuple[str, ...], **_: Any) -> int:  # Any: as above
        ctx = click.get_current_context()
        assert isinstance(ctx.command, FlagCommand)
        given = given_values(ctx, ctx.command.flag_options)
        model_tag, prompt = _model_and_prompt(texts, names_model="url" in given or "model" in given)
        given = values_with_model(model_tag)
        config = build_config(CompleteConfig, given)
        engine_config = engine_to_start(given, config.answer.url)
        if run_complete is not None:
            return run_complete(prompt, config, engine_config)
        from ..terminal.chat.complete import run

        return run(prompt, config, engine_config)

    argument = click.Argument(["texts"], nargs=-1, metavar="[MODEL] [PROMPT]")
    return FlagCommand(
        "complete", flags_with_engine(CompleteConfig), {}, [argument], complete,
        "Print the text that follows PROMPT, as it comes, by the server at --url or by MODEL in an engine of this "
        "command's own. Without PROMPT, it is read from the standard input; without --url and MODEL, it goes where "
        "`pagewire chat` goes.",
        _REFUSED,
        examples=(
            "pagewire complete 'Once upon a time' --max-tokens 64",
            "pagewire complete --url http://gpu-host:8000 'Once upon a time'",
            "pagewire complete SmolLM2-135M-Instruct 'The capital of France is' --stop .",
            "pagewire complete --model Qwen/Qwen3-0.6B < prompt.txt",
        ),
    )  # fmt: skip


def flags_with_engine(config: type) -> list[Flag]:
    """Return a command's own flags, then those of the engine that it may start; a name that both have is one flag."""
    own = config_flags(config)
    names = {flag.field for flag in own}
    return [*own, *(flag for flag in engine_flags() if flag.field not in names)]


def engine_to_start(given: Mapping[str, object], url: str | None) -> EngineConfig | None:
    """Return the config of an engine of the command's own; None if a server answers.

    Raises:
        ConfigError: flags of an engine were given for a server that runs, or something else as a model.
    """
    fields = {flag.field: flag.name for flag in engine_flags()}
    about_engine = [fields[field] for field in given if field in fields and field not in ("log_level", "log_format")]
    if url is not None:
        if about_engine:
            raise ConfigError(
                f"{about_engine[0]} is decided by the server at {url}; leave it out, or --url"
                + ("; --model-name chooses one of its models." if about_engine[0] == "--model" else ".")
            )
        return None
    model = given.get("model")
    if isinstance(model, str) and model.startswith(("http://", "https://")) and "huggingface.co" not in model:
        raise ConfigError(f"{model} is the address of a server; give it as --url {model}.")
    if isinstance(model, str) and _is_prompt(model):
        raise ConfigError(f"{model!r} is no model; `pagewire chat --quick` answers a message.")
    # What the processes log at their start would stand between the lines of the conversation.
    return build_engine_config({"log_level": "warning", **given}) if about_engine else None


def _model_and_prompt(texts: tuple[str, ...], *, names_model: bool) -> tuple[str | None, str | None]:
    if len(texts) > (1 if names_model else 2):
        raise ConfigError(f"{len(texts)} texts are too many; put the prompt in quotes.")
    if names_model or (len(texts) == 1 and _is_prompt(texts[0])):
        return None, texts[0] if texts else None
    return (texts[0] if texts else None), (texts[1] if len(texts) == 2 else None)


def _is_prompt(text: str) -> bool:
    """Tell whether a lone text is no model's name: it has words, and is no path, let alone one that there is."""
    if text.startswith(("/", "./", "../", "~")):
        return False
    return len(text.split()) > 1 and not os.path.exists(text)  # noqa: PTH110 -- Path raises where a name is too long
