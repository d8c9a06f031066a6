"""From what a request asks for to the grammar library's own language. It runs in the helper: texts are anyone's."""

from __future__ import annotations

import json
from typing import Any

import llguidance

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.structured_outputs import Grammar, without_anchors

from .lark_schemas import schemas_in
from .schema_check import has_finite_document

# Blanks between the elements of a document are fixed: a model that likes them would write nothing else. These are what
# most of what models have read has.
_JSON_OPTIONS: llguidance._lib.JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
# llguidance's own name for options inside a schema.
_OPTIONS_KEY = "x-guidance"


def to_llguidance(grammar: Grammar) -> str:
    """Return a grammar in the library's language; that it compiles is not said.

    Raises:
        InvalidRequest: naming what is wrong.
    """
    match grammar.kind:
        case "json_schema":
            return _from_schema(grammar.text)
        case "regex":
            return _from_regex(grammar.text)
        case "choice":
            return _from_choices(grammar.text)
        case "grammar":
            return _from_grammar(grammar.text)
        case "structural_tag":
            return _from_structural_tag(grammar.text)


def refused(why: str) -> InvalidRequest:
    """Return the error of a grammar that can't be used."""
    return InvalidRequest(f"The grammar of structured_outputs can't be used: {why}", param="structured_outputs")


def _from_schema(text: str) -> str:
    schema = _parse(text, "the schema")
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        why = "the schema false allows no document" if schema is False else "a JSON schema is an object or true"
        raise refused(f"{why}.")
    _check_finite(schema)
    text = json.dumps(schema, ensure_ascii=False)
    return llguidance.LLMatcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS)


def _check_finite(schema: Any) -> None:  # Any: JSON
    try:
        is_finite = has_finite_document(schema)
    except RecursionError as exc:
        raise refused("the schema is nested too deeply.") from exc
    if not is_finite:
        raise refused("no document of the schema ever ends: a $ref leads back to itself on every way.")


def _from_regex(pattern: str) -> str:
    r"""Translate an expression; \d and \w mean ASCII, as in JSON schemas: people who write \d{4} mean a year."""
    in_lark = llguidance.regex_to_lark(without_anchors(pattern), "dw")
    return llguidance.LLMatcher.grammar_from_lark(f"start: /{in_lark}/")


def _from_choices(text: str) -> str:
    choices = _parse(text, "choice")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise refused("choice is a list of one text or more.")
    # JSON's escapes are Lark's; raw UTF-8 needs none. A terminal: of a rule's alternatives, 2,000 are too many.
    return llguidance.LLMatcher.grammar_from_lark(
        "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    )


def _from_grammar(text: str) -> str:
    """Translate Lark or GBNF. Calls of tools, and forms behind reasoning, come so, with their schemas in it."""
    try:
        translated = llguidance.grammar_from("grammar", text)
        for schema in schemas_in(text):
            _check_finite(schema)
    except (ValueError, RecursionError) as exc:
        raise refused(str(exc)) from exc
    return translated


def _from_structural_tag(text: str) -> str:
    """Translate the form with `structures` and `triggers`: free text, and what follows each trigger by its schema."""
    tag = _parse(text, "structural_tag")
    if not isinstance(tag, dict) or not isinstance(tag.get("structures"), list):
        raise refused(
            "a structural_tag has structures, a list of begin, schema and end, and triggers, a list of texts."
        )
    triggers = [trigger for trigger in tag.get("triggers") or [] if isinstance(trigger, str) and trigger]
    structures: list[llguidance.StructTag] = []
    for structure in tag["structures"]:
        if not isinstance(structure, dict):
            raise refused("each of a structural_tag's structures is an object of begin, schema and end.")
        begin, end = structure.get("begin"), structure.get("end")
        schema = structure.get("schema", {})
        if not isinstance(begin, str) or not isinstance(end, str) or not isinstance(schema, dict):
            raise refused("begin and end of a structural_tag's structure are texts, its schema is an object.")
        trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
        if trigger is None:
            raise refused(f"no trigger of the structural_tag begins {begin!r}.")
        _check_finite(schema)
        options = {_OPTIONS_KEY: dict(_JSON_OPTIONS)}
        structures.append(llguidance.StructTag(trigger=trigger, begin=begin, grammar={**schema, **options}, end=end))
    if not structures:
        raise refused("a structural_tag has at least one structure.")
    return llguidance.StructTag.to_grammar(structures, assume_special=False)


def _parse(text: str, what: str) -> Any:  # Any: JSON
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise refused(f"{what} is no JSON: {exc}.") from exc
