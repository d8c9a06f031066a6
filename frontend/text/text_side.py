"""A model's text side: what turns requests into token ids and token ids into text, read from the model's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pagewire.checkpoint.generation_config import GenerationDefaults, load_generation_defaults, override_defaults
from pagewire.ipc.config import ModelOptions

from ..tokenizer.tokenizer import Tokenizer, load_tokenizer
from .template_source import TemplateSource, template_source


@dataclass(frozen=True, kw_only=True)
class TextSide:
    """The tokenizer, the chat template and the sampling defaults of one model."""

    tokenizer: Tokenizer
    template: TemplateSource
    defaults: GenerationDefaults


def load_text_side(model_path: Path, options: ModelOptions, *, chat_template: str | None = None) -> TextSide:
    """Load what belongs to the model at `model_path`.

    Args:
        model_path: local directory or file.
        options: says whether the model's own sampling defaults hold, and what stands over them.
        chat_template: a Jinja template, or the file of one, instead of the model's.

    Raises:
        ConfigError: a file is missing or can't be read, or a default can't be overridden so.
    """
    tokenizer = load_tokenizer(model_path)
    uses_model_defaults = options.generation_config == "auto"
    defaults = load_generation_defaults(model_path) if uses_model_defaults else GenerationDefaults()
    return TextSide(
        tokenizer=tokenizer,
        template=template_source(tokenizer, chat_template),
        defaults=override_defaults(defaults, options.override_generation_config or {}),
    )
