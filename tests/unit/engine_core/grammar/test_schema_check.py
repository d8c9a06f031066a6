"""A schema has a finite document, or every way through it leads back."""

from __future__ import annotations

import pytest

from pagewire.engine_core.grammar.schema_check import has_finite_document


def defs(**schemas):
    return {"$ref": "#/$defs/a", "$defs": schemas}


def requiring(reference):
    return {"type": "object", "properties": {"x": {"$ref": reference}}, "required": ["x"]}


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object"},
        defs(a={"type": "integer"}),
        defs(a={"anyOf": [requiring("#/$defs/a"), {"type": "null"}]}),
        defs(a={"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}}),
        defs(a={"type": "array", "items": {"$ref": "#/$defs/a"}}),
        defs(a=requiring("#/$defs/b"), b={"const": 1}),
        defs(a={"$ref": "#/$defs/missing"}),
        {"$ref": "https://example.org/schema"},
        {"type": "array", "items": {"$ref": "#"}},
    ],
)
def test_there_is_a_document(schema):
    assert has_finite_document(schema)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"$ref": "#"},
        defs(a={"$ref": "#/$defs/a"}),
        defs(a={"$ref": "#/$defs/b"}, b={"$ref": "#/$defs/a"}),
        defs(a=requiring("#/$defs/a")),
        defs(a=requiring("#/$defs/b"), b=requiring("#/$defs/a")),
        defs(a={"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}),
        defs(a={"type": "array", "prefixItems": [{"$ref": "#/$defs/a"}], "minItems": 1}),
        defs(a={"anyOf": [requiring("#/$defs/a"), False]}),
        defs(a={"allOf": [{}, {"$ref": "#/$defs/a"}]}),
    ],
)
def test_there_is_none(schema):
    assert not has_finite_document(schema)
