"""Bodies made from the server's own description of them: well-formed ones, and what can be done to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Set
from typing import Any

from tools.dev_extra import dev_extra

with dev_extra():
    from hypothesis import strategies as st

Json = Any  # a JSON value, NaN and lone surrogates among them, which JSON doesn't have
Schema = Mapping[str, Any]

_BIG = (2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**400)
_NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([sign * big for big in _BIG for sign in (1, -1)]),
    st.sampled_from([0.5, -0.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf")]),
    st.floats(),
)
# Surrogates, controls, and what templates, headers and logs might take for their own.
_TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=20),
    st.sampled_from(
        [
            "",
            "\x00",
            "\ud83d",
            "\ude00x",
            "\u202e",
            "{{ 9**(9**9) }}",
            "{% for",
            "\r\nX: y",
            "'; --",
            "../../etc",
            "é" * 300,
        ]
    ),
    st.builds(lambda text, count: text * count, st.text(min_size=1, max_size=3), st.integers(100, 3000)),
)
_SCALARS = st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS)
JSON_VALUES = st.recursive(
    _SCALARS,
    lambda values: st.lists(values, max_size=4) | st.dictionaries(_TEXTS, values, max_size=4),
    max_leaves=8,
)


class Bodies:
    """Strategies for the bodies that a document describes.

    Args:
        document: the OpenAPI description.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._schemas: Mapping[str, Schema] = document["components"]["schemas"]
        self._made: dict[str, st.SearchStrategy[Json]] = {}

    def of(self, schema: Schema) -> st.SearchStrategy[Json]:
        """Return values that fit a schema."""
        if "$ref" in schema:
            return self._referenced(schema["$ref"].rpartition("/")[2])
        if "anyOf" in schema:
            return st.one_of([self.of(each) for each in schema["anyOf"]])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        if "const" in schema:
            return st.just(schema["const"])
        kinds = schema.get("type", "any")
        return st.one_of([self._of_kind(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds)])

    def _referenced(self, name: str) -> st.SearchStrategy[Json]:
        if name not in self._made:
            self._made[name] = st.deferred(lambda: self.of(self._schemas[name]))
        return self._made[name]

    def _of_kind(self, kind: str, schema: Schema) -> st.SearchStrategy[Json]:
        makers: dict[str, Callable[[Schema], st.SearchStrategy[Json]]] = {
            "object": self._object,
            "array": self._array,
            "string": lambda schema: st.text(max_size=min(schema.get("maxLength", 30), 30)),
            "integer": lambda schema: st.integers(
                max(schema.get("minimum", -9), -9), min(schema.get("maximum", 300), 300)
            ),
            "number": lambda _: st.floats(-2, 2) | st.integers(-2, 2),
            "boolean": lambda _: st.booleans(),
            "null": lambda _: st.none(),
            "any": lambda _: JSON_VALUES,
        }
        return makers[kind](schema)

    def _object(self, schema: Schema) -> st.SearchStrategy[Json]:
        properties = {name: self.of(each) for name, each in schema.get("properties", {}).items()}
        if not properties:
            others = schema.get("additionalProperties")
            values = self.of(others) if isinstance(others, Mapping) else JSON_VALUES
            return st.dictionaries(st.integers(0, 300).map(str) | _TEXTS, values, max_size=3)
        return _objects(properties, frozenset(schema.get("required", ())))

    def _array(self, schema: Schema) -> st.SearchStrategy[Json]:
        items = schema.get("items")
        return st.lists(
            self.of(items) if isinstance(items, Mapping) else JSON_VALUES,
            min_size=schema.get("minItems", 0),
            max_size=min(schema.get("maxItems", 4), 4) + schema.get("minItems", 0),
        )


# Strategies are made once and drawn from: making one takes a hundred times as long as a draw.
def _objects(properties: Mapping[str, st.SearchStrategy[Json]], required: Set[str]) -> st.SearchStrategy[Json]:
    optional = [name for name in properties if name not in required]
    # Few at a time: with all hundred fields there, nearly every body would fail at the same first one.
    chosen = st.lists(st.sampled_from(optional), unique=True, max_size=5) if optional else st.just([])

    @st.composite
    def objects(draw: st.DrawFn) -> Json:
        return {name: draw(properties[name]) for name in [*sorted(required), *draw(chosen)]}

    return objects()


_COUNTS = st.integers(1, 2)
_DAMAGES = st.sampled_from(["replace", "replace", "remove", "nest", "wrap", "pairs"])
_NAMES = st.sampled_from(
    ["temperature", "n", "stop", "logit_bias", "metadata", "seed", "made_up", "messages", "prompt"]
)
_DEPTHS = st.sampled_from([1, 30, 60, 61, 62, 63, 64, 200, 300])
_PLACES = st.integers(0, 10_000)
_SPELLINGS = st.sampled_from(["ascii", "utf-8", "indented"])
_CORRUPTIONS = st.sampled_from(["cut", "insert", "overwrite", "brackets", "mark", "utf-16", "twice", "noise"])
_JUNK = st.binary(min_size=1, max_size=6)
_NOISE = st.binary(max_size=200)
_BRACKETS = st.sampled_from([b"[" * 100_000, b'{"a":' * 50_000, b"[[]," * 30_000, b"9" * 5000, b'"' * 3])


@st.composite
def damaged(draw: st.DrawFn, bodies: st.SearchStrategy[Json]) -> Json:
    """Draw a body, and replace, remove or add one place of it or two."""
    body = draw(bodies)
    for _ in range(draw(_COUNTS)):
        if not isinstance(body, dict):
            break
        names = [*body, draw(_NAMES)]
        name = names[draw(_PLACES) % len(names)]
        match draw(_DAMAGES):
            case "replace":
                body = {**body, name: draw(JSON_VALUES)}
            case "remove":
                body = {key: value for key, value in body.items() if key != name}
            case "nest":
                body = {**body, name: _nested(body.get(name), draw(_DEPTHS))}
            case "wrap":
                body = [body]
            case "pairs":
                body = list(body.items())
    return body


def _nested(value: Json, depth: int) -> Json:
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@st.composite
def spelled(draw: st.DrawFn, bodies: st.SearchStrategy[Json]) -> bytes:
    """Draw a body and write it in one of the ways that clients write JSON."""
    body = draw(bodies)
    match draw(_SPELLINGS):
        case "ascii":
            return json.dumps(body).encode()
        case "utf-8":
            return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        case _:
            return json.dumps(body, indent=1).encode()


@st.composite
def corrupted(draw: st.DrawFn, texts: st.SearchStrategy[bytes]) -> bytes:
    """Draw a text and make it something that was JSON."""
    text = draw(texts)
    at = draw(_PLACES) % (len(text) + 1)
    match draw(_CORRUPTIONS):
        case "cut":
            return text[:at]
        case "insert":
            return text[:at] + draw(_JUNK) + text[at:]
        case "overwrite":
            junk = draw(_JUNK)
            return text[:at] + junk + text[at + len(junk) :]
        case "brackets":
            return text[:at] + draw(_BRACKETS) + text[at:]
        case "mark":
            return b"\xef\xbb\xbf" + text
        case "utf-16":
            return text.decode("utf-8", "replace").encode("utf-16")
        case "twice":
            return text + text
        case _:
            return draw(_NOISE)
