"""A model's text side: what turns requests into token ids and token ids into text, read from the model's files."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from pagewire.checkpoint.generation_config import GenerationDefaults, load_generation_defaults
from pagewire.ipc.config import ModelOptions
from pagewire.ipc.errors import ConfigError, InvalidRequest

from ..tokenizer.tokenizer import Tokenizer, load_tokenizer
from .chat_template import ChatTemplate

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TextSide:
    """The tokenizer, the chat template and the sampling defaults of one model."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate
    defaults: GenerationDefaults


def load_text_side(model_path: Path, options: ModelOptions, *, chat_template: str | None = None) -> TextSide:
    """Load what belongs to the model at `model_path`.

    Args:
        model_path: local directory or file.
        options: says whether the model's own sampling defaults hold.
        chat_template: a Jinja template, or the file of one, instead of the model's.

    Raises:
        ConfigError: a file is missing or can't be read, or the given chat template is no template.
    """
    tokenizer = load_tokenizer(model_path)
    uses_model_defaults = options.generation_config == "auto"
    return TextSide(
        tokenizer=tokenizer,
        chat_template=_model_template(tokenizer) if chat_template is None else read_template(chat_template, tokenizer),
        defaults=load_generation_defaults(model_path) if uses_model_defaults else GenerationDefaults(),
    )


def read_template(template: str, tokenizer: Tokenizer) -> ChatTemplate:
    """Return the chat template that a user gives: the text itself or the name of its file.

    Raises:
        ConfigError: the file can't be read, or it is no template.
    """
    source = template
    if "{" not in template:  # a template without any tag would be of no use
        try:
            source = Path(template).read_text(encoding="utf-8")
        except OSError as exc:
            raise ConfigError(f"chat template {template} can't be read: {exc.strerror}.") from exc
    try:
        return ChatTemplate(source, special_tokens=tokenizer.special_tokens)
    except InvalidRequest as exc:
        raise ConfigError(f"chat template {template}: {exc.message}") from exc


def _model_template(tokenizer: Tokenizer) -> ChatTemplate:
    try:
        return ChatTemplate(tokenizer.chat_template, special_tokens=tokenizer.special_tokens)
    except InvalidRequest as exc:
        logger.warning("the model's chat template is unusable, chats are refused: %s", exc)
        return ChatTemplate(None)
