"""What `pagewire chat` and `pagewire complete` can be told; flags are made from these fields."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from pagewire.ipc.errors import ConfigError

from ..address import JsonObject, checked_url


class AnswerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server to ask, and how it shall answer."""

    url: Annotated[str | None, Meta(description="A server that runs, like http://host:8000, instead of MODEL.")] = None
    api_key: Annotated[
        str | None, Meta(description="Bearer key to send. Default: PAGEWIRE_API_KEY, VLLM_API_KEY or OPENAI_API_KEY.")
    ] = None
    model_name: Annotated[str | None, Meta(description="Which of the server's models to ask. Default: its first.")] = (
        None
    )
    max_tokens: Annotated[int | None, Meta(description="Longest answer in tokens.")] = None
    temperature: Annotated[
        float | None, Meta(description="0: the likeliest token each time. Default: the model's own.")
    ] = None
    top_p: Annotated[float | None, Meta(description="Share of the likeliest tokens to draw from.")] = None

    def __post_init__(self) -> None:
        if self.url is not None:
            checked_url(self.url)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"--max-tokens {self.max_tokens} must be at least 1.")
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise ConfigError(f"--temperature {self.temperature:g} must be at least 0.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"--top-p {self.top_p:g} must be above 0 and at most 1.")

    @property
    def settings(self) -> JsonObject:
        """The fields of requests that were given."""
        fields = {"max_tokens": self.max_tokens, "temperature": self.temperature, "top_p": self.top_p}
        return {name: value for name, value in fields.items() if value is not None}


class ChatConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conversation."""

    answer: AnswerConfig = AnswerConfig()
    system_prompt: Annotated[str | None, Meta(description="What the model is told before the first message.")] = None
    quick: Annotated[
        str | None, Meta(description="Answer this message as plain text, and end; what is piped in follows it.")
    ] = None
    plain: Annotated[bool, Meta(description="Show answers as they are, without Markdown and colors.")] = False
    history_file: Annotated[
        str | None,
        Meta(description="Where typed lines are kept, for the arrow keys. Default: in $XDG_STATE_HOME/pagewire."),
    ] = None


class CompleteConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The completion."""

    answer: AnswerConfig = AnswerConfig()
    stop: Annotated[tuple[str, ...], Meta(description="Text that ends the answer (may be repeated).")] = ()
    echo: Annotated[bool, Meta(description="Print the prompt before the answer.")] = False
