"""Schemas are found where they stand, and nowhere else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.engine_core.grammar.lark_schemas import schemas_in

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=4), st.integers(0, 2))
def test_every_schema_is_found_in_its_order(schemas, indent):
    rules = [
        f'r{n}: "%json {{}}" %json {json.dumps(schema, indent=indent)} /%json \\/"/' for n, schema in enumerate(schemas)
    ]
    text = "\n".join(["%llguidance {}", "start: r0 // %json 3", *rules, "# %json 4", ""])
    assert list(schemas_in(text)) == schemas


@pytest.mark.parametrize("text", ["", 'start: "a"', "start: %json", "start: %json {", "a: %jsonx 1"])
def test_what_is_no_schema_is_none(text):
    assert list(schemas_in(text)) == []
