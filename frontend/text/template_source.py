"""Where a chat template comes from: the model's files, or whoever starts the server; and what a bad one leads to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pagewire.ipc.errors import ConfigError, InvalidRequest

from ..tokenizer.tokenizer import Tokenizer
from .chat_content import ContentFormat
from .chat_template import ChatTemplate

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TemplateSource:
    """A chat template that is not compiled yet: compiling runs it, in part.

    Attributes:
        text: the Jinja text; None for a model without one.
        special_tokens: role -> token, variables of the template.
        given: what a user gave, the name of a file or the text; None for the model's own.
        content_format: in which shape messages get to it.
    """

    text: str | None
    special_tokens: Mapping[str, str]
    given: str | None = None
    content_format: ContentFormat = "auto"

    def reject(self, fault: InvalidRequest) -> None:
        """Note that it can't be compiled: chats are to be refused then, but the model can still complete plain text.

        Raises:
            ConfigError: a user gave it, who wants to hear of it.
        """
        if self.given is not None:
            raise ConfigError(f"chat template {self.given}: {fault.message}") from fault
        logger.warning("the model's chat template is unusable, chats are refused: %s", fault)


def template_source(tokenizer: Tokenizer, given: str | None = None) -> TemplateSource:
    """Return the model's own template, or the one that a user gives: the text itself or the name of its file.

    Raises:
        ConfigError: the file can't be read.
    """
    text = _own_template(tokenizer.chat_templates)
    if given is not None:
        text = given
        if "{" not in given:  # a template without any tag would be of no use
            try:
                text = Path(given).read_text(encoding="utf-8")
            except OSError as exc:
                raise ConfigError(f"chat template {given} can't be read: {exc.strerror}.") from exc
            except UnicodeDecodeError as exc:
                raise ConfigError(f"chat template {given} can't be read: it is no UTF-8 text.") from exc
    return TemplateSource(text=text, special_tokens=tokenizer.special_tokens, given=given)


def _own_template(templates: Mapping[str, str]) -> str | None:
    """Return a model's template; where it has one for chats with tools, that one if there are any, else the default."""
    default, with_tools = templates.get("default"), templates.get("tool_use")
    if default is None or with_tools is None:
        return default
    # A line break behind a tag is the tag's, and so is the last one of a template.
    return (
        f"{{% if tools %}}\n{_without_last_break(with_tools)}{{% else %}}\n{_without_last_break(default)}{{% endif %}}"
    )


def _without_last_break(template: str) -> str:
    return template.removesuffix("\n")


def compile_template(source: TemplateSource) -> ChatTemplate:
    """Compile a template in this process, for programs that run it at their own risk.

    Raises:
        ConfigError: a user gave it, and it is no template.
    """
    try:
        return ChatTemplate(source.text, special_tokens=source.special_tokens)
    except InvalidRequest as exc:
        source.reject(exc)
        return ChatTemplate(None)
