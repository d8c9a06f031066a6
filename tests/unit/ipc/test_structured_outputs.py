from __future__ import annotations

import json

import pytest

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.structured_outputs import MAX_GRAMMAR_CHARS, Grammar, StructuredOutputs, check_grammar, to_grammar


@pytest.mark.parametrize("given", [{}, {"regex": "a", "choice": ["b"]}], ids=["none", "two"])
def test_exactly_one_kind_must_be_given(given: dict[str, object]):
    with pytest.raises(InvalidRequest, match="exactly one of"):
        StructuredOutputs(**given)


def test_a_kind_that_there_is_not_is_named_with_the_nearest():
    with pytest.raises(InvalidRequest, match="did you mean regex"):
        StructuredOutputs(regexp="a")


@pytest.mark.parametrize("choice", [[], ["a"] * 10_001], ids=["empty", "too many"])
def test_the_number_of_choices_is_bounded(choice: list[str]):
    with pytest.raises(InvalidRequest, match="1 to 10000"):
        StructuredOutputs(choice=choice)


def test_a_json_object_is_asked_for_or_left_out():
    with pytest.raises(InvalidRequest, match="json_object must be true"):
        StructuredOutputs(json_object=False)
    assert to_grammar(StructuredOutputs(json_object=True)) == Grammar("json_schema", '{"type":"object"}')


def test_a_schema_may_be_text_or_an_object():
    schema = {"type": "string", "enum": ["é", "日"]}
    assert to_grammar(StructuredOutputs(json=json.dumps(schema))).text == json.dumps(schema)
    assert json.loads(to_grammar(StructuredOutputs(json=schema)).text) == schema


def test_every_kind_reaches_the_core_as_it_was_given():
    assert to_grammar(StructuredOutputs(regex="a+")) == Grammar("regex", "a+")
    assert to_grammar(StructuredOutputs(choice=["a", "b"])) == Grammar("choice", '["a","b"]')
    assert to_grammar(StructuredOutputs(grammar="start: /a/")) == Grammar("grammar", "start: /a/")
    assert to_grammar(StructuredOutputs(structural_tag="{}")) == Grammar("structural_tag", "{}")


@pytest.mark.parametrize("text", ["", "a" * (MAX_GRAMMAR_CHARS + 1)], ids=["empty", "too long"])
def test_the_size_of_a_grammar_is_bounded(text: str):
    with pytest.raises(InvalidRequest, match="characters"):
        check_grammar(Grammar("regex", text))
