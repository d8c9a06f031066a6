"""What cannot be used is refused with its defect; what can is the language that was asked for."""

from __future__ import annotations

import json

import llguidance
import pytest

from pagewire.engine_core.grammar.compiling import compile_matcher
from pagewire.engine_core.grammar.translate import to_llguidance
from pagewire.engine_core.grammar.vocabulary import make_vocabulary
from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.structured_outputs import Grammar

EOS = 256
BYTES = make_vocabulary([*(bytes([byte]) for byte in range(256)), b"\xff<eos>"], [EOS], [EOS])
RECURSIVE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
    },
}

ENDLESS = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]},
    },
}


def compiled(kind: str, text: str) -> llguidance.LLMatcher:
    return compile_matcher(BYTES, to_llguidance(Grammar(kind, text)))  # type: ignore[arg-type]


def matches(kind: str, grammar: str, text: str) -> bool:
    matcher = compiled(kind, grammar)
    encoded = list(text.encode())
    return matcher.try_consume_tokens(encoded) == len(encoded) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("kind", "text", "defect"),
    [
        ("json_schema", '{"properties": {"foo": "bar"}}', "schema must be an object or boolean"),
        ("json_schema", "{", "no JSON"),
        ("json_schema", "[" * 100_000, "no JSON"),
        ("json_schema", "3", "an object or true"),
        ("json_schema", "false", "no document"),
        ("json_schema", '{"enum": []}', "empty"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("json_schema", '{"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}', r"\$ref"),
        (
            "json_schema",
            '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}',
            "ends",
        ),
        ("regex", "[", "unclosed character class"),
        ("regex", "(?=a)b", "look-ahead"),
        ("regex", "", "empty one"),
        ("grammar", "root ::= ", "empty one"),
        ("regex", r"[^\s\S]", r"used: it allows no text\.$"),
        ("grammar", "start: start", r"used: it allows no text\.$"),
        ("grammar", "start: missing", "missing"),
        ("grammar", "what (", "GBNF"),
        ("grammar", f'start: a | b\na: "x"\nb: "y" %json {json.dumps(ENDLESS)}\n', "ends"),
        ("choice", "[]", "one text or more"),
        ("choice", "[1]", "one text or more"),
        ("structural_tag", "{}", "structures"),
        ("structural_tag", '{"structures": [{"begin": "<a>", "end": "</a>"}], "triggers": []}', "no trigger"),
    ],
)
def test_what_is_wrong_is_named(kind, text, defect):
    with pytest.raises(InvalidRequest, match=defect) as refusal:
        compiled(kind, text)
    assert len(refusal.value.message) < 700
    assert refusal.value.param == "structured_outputs"


@pytest.mark.parametrize("text", ["在线", "Sjöfart", "😀"])
def test_other_alphabets_are_written_as_they_are(text):
    choices = ["在线", "Sjöfart", "😀"]
    assert matches("choice", json.dumps(choices), text)
    document = json.dumps(text, ensure_ascii=False)
    assert matches("json_schema", json.dumps({"enum": choices}), document)
    assert not matches("json_schema", json.dumps({"enum": choices}), json.dumps(text)) or text.isascii()


def test_choices_may_be_many():
    choices = [f"number {n * 7919 % 10_007}" for n in range(10_000)]
    assert matches("choice", json.dumps(choices), choices[5000])
    assert not matches("choice", json.dumps(choices), "number 10007")


@pytest.mark.parametrize(
    ("document", "is_allowed"),
    [
        ('{"a": 1, "b": [1, 2]}', True),
        ("{}", True),
        ('{"a": 1,  "b": 2}', False),
        ('{ "a": 1}', False),
        ('{"a": 1}\n', False),
    ],
)
def test_blanks_between_elements_are_few(document, is_allowed):
    assert matches("json_schema", '{"type": "object"}', document) == is_allowed
    assert (
        matches("json_schema", '{"type": "object", "x-guidance": {"whitespace_flexible": true}}', document)
        == is_allowed
    )


def test_recursion_that_can_end_is_followed():
    assert matches("json_schema", json.dumps(RECURSIVE), '{"next": {"next": {}}}')


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        (r"\d{4}", "2024", True),
        (r"\d", "٣", False),
        ("^ab$", "ab", True),
        (r"a\$", "a$", True),
        ("a/b", "a/b", True),
        ("(?i)yes", "YES", True),
        ("a|bc", "abc", False),
        ("a", "ab", False),
    ],
)
def test_expression_matches_the_whole_text(pattern, text, is_match):
    assert matches("regex", pattern, text) == is_match


def test_grammars_are_lark_or_gbnf():
    assert matches("grammar", 'root ::= "(" root ")" | "x"', "((x))")
    assert matches("grammar", 'start: "(" start ")" | "x"', "((x))")


def test_tags_are_forced_behind_their_trigger_and_text_is_free():
    tag = {
        "structures": [{"begin": "<f=x>", "schema": {"type": "object"}, "end": "</f>"}],
        "triggers": ["<f="],
    }
    assert matches("structural_tag", json.dumps(tag), "just text")
    assert matches("structural_tag", json.dumps(tag), 'text <f=x>{"a": 1}</f> more')
    assert not matches("structural_tag", json.dumps(tag), "text <f=y>")
    assert not matches("structural_tag", json.dumps(tag), "text <f=x>[]</f>")
