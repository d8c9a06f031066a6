"""Whether a JSON schema has any finite document: one that refers to itself may need a document inside each document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

JsonSchema = Any  # Any: a schema is whatever JSON its author wrote


def has_finite_document(schema: JsonSchema) -> bool:
    """Say whether references come to an end: which of them can be met is the least fixed point over all of them.

    Keywords besides references are taken at their word: what makes them unsatisfiable is the compiler's to find.
    """
    references = set(_references(schema))
    finite: set[str] = set()
    while True:
        more = {
            reference
            for reference in references - finite
            if (target := _resolve(schema, reference)) is _UNKNOWN or _is_finite(target, finite)
        }
        if not more:
            return _is_finite(schema, finite)
        finite |= more


_UNKNOWN = object()  # the compiler says what is wrong with a reference to nothing


def _references(node: JsonSchema) -> Iterator[str]:
    stack = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if isinstance(item.get("$ref"), str):
                yield item["$ref"]
            stack += item.values()
        elif isinstance(item, list):
            stack += item


def _resolve(schema: JsonSchema, reference: str) -> JsonSchema:
    if not reference.startswith("#"):
        return _UNKNOWN
    node = schema
    for part in reference.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return _UNKNOWN
    return node


def _is_finite(schema: JsonSchema, finite: set[str]) -> bool:
    """Say whether a schema has a finite document, if the references in `finite` have, and no others."""
    if not isinstance(schema, dict):
        return schema is not False
    if isinstance(schema.get("$ref"), str) and schema["$ref"] not in finite:
        return False
    if not all(_is_finite(part, finite) for part in _list_of(schema, "allOf")):
        return False
    for keyword in ("anyOf", "oneOf"):
        parts = _list_of(schema, keyword)
        if parts and not any(_is_finite(part, finite) for part in parts):
            return False
    if "const" in schema or "enum" in schema:
        return True
    types = schema.get("type")
    if types == "object":
        return _is_object_finite(schema, finite)
    if types == "array":
        return _is_array_finite(schema, finite)
    return True  # a number, a text or null; or it may be one


def _is_object_finite(schema: dict[str, JsonSchema], finite: set[str]) -> bool:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return True
    return all(_is_finite(properties.get(name, True), finite) for name in _list_of(schema, "required"))


def _is_array_finite(schema: dict[str, JsonSchema], finite: set[str]) -> bool:
    num_items = schema.get("minItems")
    if not isinstance(num_items, int) or num_items <= 0:
        return True
    first = _list_of(schema, "prefixItems")
    if not all(_is_finite(item, finite) for item in first[:num_items]):
        return False
    return len(first) >= num_items or _is_finite(schema.get("items", True), finite)


def _list_of(schema: dict[str, JsonSchema], keyword: str) -> list[JsonSchema]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []
