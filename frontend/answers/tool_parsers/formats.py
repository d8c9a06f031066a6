"""The formats that calls are written in, by name; which one a model uses is seen from its chat template."""

from __future__ import annotations

import enum
import secrets
import string
from collections.abc import Callable, Collection

from .base import ToolParser
from .hermes import HermesParser
from .llama3_json import Llama3JsonParser
from .mistral import MistralParser
from .pythonic import END_TAGS, START_TAGS, PythonicParser


class ToolFormat(enum.Enum):
    """A format; its value is the name of the flag --tool-call-parser."""

    HERMES = "hermes"
    LLAMA3_JSON = "llama3_json"
    MISTRAL = "mistral"
    PYTHONIC = "pythonic"


PARSERS: dict[ToolFormat, type[ToolParser]] = {
    ToolFormat.HERMES: HermesParser,
    ToolFormat.LLAMA3_JSON: Llama3JsonParser,
    ToolFormat.MISTRAL: MistralParser,
    ToolFormat.PYTHONIC: PythonicParser,
}
# Tags that may be control tokens of a vocabulary, which must stay in the text then.
TAGS: dict[ToolFormat, tuple[str, ...]] = {
    ToolFormat.HERMES: ("<tool_call>", "</tool_call>"),
    ToolFormat.LLAMA3_JSON: ("<|python_tag|>",),
    ToolFormat.MISTRAL: ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    ToolFormat.PYTHONIC: (*START_TAGS, *END_TAGS),
}
# What stands in a template, the first that does; None: a format that isn't read here.
_MARKS: tuple[tuple[str, ToolFormat | None], ...] = (
    ("<function=", None),  # Qwen3-Coder and some Llamas
    ("<arg_key>", None),  # GLM
    ("<invoke", None),  # MiniMax
    ("<tool_calls>", None),  # Apriel
    ("<tool_call>", ToolFormat.HERMES),
    ("[TOOL_CALLS]", ToolFormat.MISTRAL),
    ("<|python_start|>", ToolFormat.PYTHONIC),
    ("<|tool_call_start|>", ToolFormat.PYTHONIC),
    ("[func_name1(", ToolFormat.PYTHONIC),
    ("<|python_tag|>", ToolFormat.LLAMA3_JSON),
    ('{"name": function name, "parameters":', ToolFormat.LLAMA3_JSON),
)


def find_format(template: str | None) -> ToolFormat | None:
    """Return the format that a chat template shows; None if it shows none, or another."""
    if template is None or "tools" not in template:
        return None
    return next((tool_format for mark, tool_format in _MARKS if mark in template), None)


def make_parser(tool_format: ToolFormat, names: Collection[str], *, is_parallel: bool) -> ToolParser:
    """Return a parser for one answer."""
    return PARSERS[tool_format](names, call_ids(tool_format), is_parallel=is_parallel)


def call_ids(tool_format: ToolFormat) -> Callable[[], str]:
    """Return what makes ids of calls; Mistral's templates refuse all but nine letters and digits."""
    if tool_format is ToolFormat.MISTRAL:
        return lambda: "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
    return lambda: "call_" + secrets.token_hex(12)
