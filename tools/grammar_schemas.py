"""JSON schemas of the kinds that people send, for `tools.measure_grammars`: each with what a model is asked."""

from __future__ import annotations

from typing import Any, NamedTuple

JsonSchema = dict[str, Any]  # Any: JSON


class AskedSchema(NamedTuple):
    """A schema, its name, and the request that goes with it."""

    name: str
    prompt: str
    schema: JsonSchema


def _record(properties: JsonSchema, required: list[str] | None = None, **more: Any) -> JsonSchema:  # Any: JSON
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **more,
    }


def _text(pattern: str) -> JsonSchema:
    return {"type": "string", "pattern": pattern}


_WORD: JsonSchema = {"type": "string", "maxLength": 16}
_TREE: JsonSchema = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": _record(
            {
                "name": {"type": "string", "maxLength": 6},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            }
        )
    },
}
_LINKED_LIST: JsonSchema = {
    "$ref": "#/$defs/item",
    "$defs": {
        "item": _record({"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/item"}, {"type": "null"}]}})
    },
}
_EXPRESSION: JsonSchema = {
    "$ref": "#/$defs/expr",
    "$defs": {
        "expr": {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": 99},
                _record(
                    {"op": {"enum": ["+", "*"]}, "left": {"$ref": "#/$defs/expr"}, "right": {"$ref": "#/$defs/expr"}}
                ),
            ]
        }
    },
}

SCHEMAS: tuple[AskedSchema, ...] = (
    AskedSchema("person", "Describe a person.", _record({"name": _WORD, "age": {"type": "integer"}})),
    AskedSchema("range", "A grade from 1 to 6.", _record({"grade": {"type": "integer", "minimum": 1, "maximum": 6}})),
    AskedSchema("number", "A price.", _record({"price": {"type": "number", "minimum": 0, "maximum": 1000}})),
    AskedSchema("enum", "What is the mood?", _record({"mood": {"enum": ["good", "bad", "neither", None, 0]}})),
    AskedSchema("unicode", "Is the ship there?", _record({"state": {"enum": ["在线", "Sjöfart", "😀"]}})),
    AskedSchema("const", "Begin.", _record({"version": {"const": 2}, "kind": {"const": "start"}, "note": _WORD})),
    AskedSchema("date", "When was that?", _record({"day": _text("^[0-9]{4}-[0-9]{2}-[0-9]{2}$")})),
    AskedSchema("phone", "A number to call.", _record({"phone": _text("^\\+[1-9][0-9]{5,10}$")})),
    AskedSchema("format", "An event.", _record({"id": {"type": "string", "format": "uuid"}, "what": _WORD})),
    AskedSchema("lengths", "A code.", _record({"code": {"type": "string", "minLength": 4, "maxLength": 8}})),
    AskedSchema("list", "Some numbers.", {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 6}),
    AskedSchema(
        "tuple",
        "A point and its name.",
        {
            "type": "array",
            "prefixItems": [{"type": "number"}, {"type": "number"}, _WORD],
            "items": False,
            "minItems": 3,
        },
    ),
    AskedSchema(
        "nested",
        "An order.",
        _record(
            {
                "customer": _record({"name": _WORD, "address": _record({"street": _WORD, "city": _WORD})}),
                "items": {
                    "type": "array",
                    "items": _record({"sku": _WORD, "count": {"type": "integer", "minimum": 1, "maximum": 9}}),
                    "minItems": 1,
                    "maxItems": 2,
                },
            }
        ),
    ),
    AskedSchema(
        "optional", "A book.", _record({"title": _WORD, "year": {"type": "integer"}, "isbn": _WORD}, ["title"])
    ),
    AskedSchema(
        "union",
        "A shape.",
        {
            "anyOf": [
                _record({"kind": {"const": "circle"}, "radius": {"type": "number"}}),
                _record({"kind": {"const": "square"}, "side": {"type": "number"}}),
            ]
        },
    ),
    AskedSchema(
        "nullable",
        "A pet.",
        _record({"name": {"type": ["string", "null"], "maxLength": 10}, "is_dog": {"type": "boolean"}}),
    ),
    AskedSchema(
        "map",
        "Scores by name.",
        {
            "type": "object",
            "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 100},
            "maxProperties": 3,
        },
    ),
    AskedSchema("tree", "A family tree.", _TREE),
    AskedSchema("linked list", "A few numbers, linked.", _LINKED_LIST),
    AskedSchema("expression", "A sum.", _EXPRESSION),
)

# A document that is not over soon: every row of a batch draws by its grammar for as long as one looks.
LONG: JsonSchema = {
    "type": "array",
    "items": _record(
        {
            "name": {"type": "string", "maxLength": 30},
            "count": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
            "price": {"type": "number"},
        }
    ),
    "minItems": 200,
}
