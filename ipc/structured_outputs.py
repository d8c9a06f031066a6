"""What a text must look like: as a user asks for it (`StructuredOutputs`), and as the engine core takes it (`Grammar`).

The core compiles a grammar and masks the tokens that would break it; whoever asks needs no tokenizer for that.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .errors import InvalidRequest
from .unknown_fields import NamesUnknownFields

MAX_GRAMMAR_CHARS = 256 * 1024
MAX_CHOICES = 10_000

GrammarKind = Literal["json_schema", "regex", "choice", "grammar", "structural_tag"]


class Grammar(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The language that an output must belong to.

    Attributes:
        kind: json_schema: a JSON document of the schema, on one line; regex: the whole text matches; choice: a JSON
            list of texts, of which it is one; grammar: Lark or GBNF; structural_tag: JSON as vLLM's users write it.
        text: the schema, the expression, ...
    """

    kind: GrammarKind
    text: str


class StructuredOutputs(
    msgspec.Struct,
    metaclass=NamesUnknownFields,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """What the answer must look like; exactly one of these is given.

    Attributes:
        json: a JSON schema, as its text or as an object.
        regex: a regular expression that matches the whole answer.
        choice: the answers to choose among.
        grammar: Lark or GBNF (EBNF) text.
        json_object: any JSON object.
        structural_tag: tags whose contents follow a schema, free text around them.
    """

    json: str | dict[str, Any] | bool | None = None  # Any: a schema is whatever JSON its author wrote
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None  # Any: likewise

    def __post_init__(self) -> None:
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidRequest(
                f"structured_outputs needs exactly one of {', '.join(self.__struct_fields__)}; "
                f"got {' and '.join(given) or 'none'}.",
                param="structured_outputs",
            )
        if self.json_object is False:
            raise InvalidRequest("json_object must be true, or left out.", param="structured_outputs.json_object")
        if self.choice is not None and not 0 < len(self.choice) <= MAX_CHOICES:
            raise InvalidRequest(
                f"choice must have 1 to {MAX_CHOICES} texts; got {len(self.choice)}.", param="structured_outputs.choice"
            )


def to_grammar(asked: StructuredOutputs) -> Grammar:
    """Return what a user asked as the core takes it.

    Raises:
        InvalidRequest: it can't be written as JSON.
    """
    if asked.json_object:
        return Grammar("json_schema", '{"type":"object"}')
    if asked.json is not None:
        return Grammar("json_schema", _as_text("json", asked.json))
    if asked.regex is not None:
        return Grammar("regex", asked.regex)
    if asked.choice is not None:
        return Grammar("choice", _as_text("choice", asked.choice))
    if asked.grammar is not None:
        return Grammar("grammar", asked.grammar)
    assert asked.structural_tag is not None
    return Grammar("structural_tag", _as_text("structural_tag", asked.structural_tag))


def without_anchors(regex: str) -> str:
    """Take off ^ and $ around an expression: the whole text matches anyway, and the grammar library has no anchors."""
    regex = regex.removeprefix("^")
    is_escaped = (len(regex) - len(regex.rstrip("$").rstrip("\\")) - 1) % 2 == 1
    return regex if is_escaped else regex.removesuffix("$")


def check_grammar(grammar: Grammar) -> None:
    """Check a grammar's size; whether it makes sense shows when it is compiled.

    Raises:
        InvalidRequest: it is empty or too long.
    """
    if not 0 < len(grammar.text) <= MAX_GRAMMAR_CHARS:
        raise InvalidRequest(
            f"The {grammar.kind} of structured_outputs must have 1 to {MAX_GRAMMAR_CHARS} characters; "
            f"got {len(grammar.text)}.",
            param="structured_outputs",
        )


def _as_text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidRequest(
            f"structured_outputs.{name} can't be written as JSON: {exc}", param=f"structured_outputs.{name}"
        ) from exc
