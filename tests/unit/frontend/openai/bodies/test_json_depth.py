"""Depth and count are those of the parsed value, whatever stands in strings."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pagewire.frontend.openai.bodies.json_depth import has_more, is_deeper

TRICKY = st.text(st.sampled_from('[]{}"\\,:x'), max_size=8)
VALUES = st.recursive(
    st.integers() | TRICKY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TRICKY, inner, max_size=3),
    max_leaves=30,
)


def depth_of(value: object) -> int:
    if not isinstance(value, list | dict):
        return 0
    return 1 + max((depth_of(each) for each in (value.values() if isinstance(value, dict) else value)), default=0)


@given(value=VALUES, limit=st.integers(1, 8), ensure_ascii=st.booleans(), indent=st.none() | st.just(1))
def test_depth_is_that_of_the_parsed_value(value, limit, ensure_ascii, indent):
    body = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent).encode()
    assert is_deeper(body, limit) == (depth_of(value) > limit)


def test_a_flat_body_of_any_size_is_not_deep():
    assert not is_deeper(b"[" + b'["]"],{"a":{}},' * 200_000 + b"1]", 3)
    assert is_deeper(b"[" + b'["]"],{"a":{}},' * 200_000 + b"1]", 2)


def count_of(value: object) -> int:
    if not isinstance(value, list | dict):
        return 0
    return 1 + sum(count_of(each) for each in (value.values() if isinstance(value, dict) else value))


@given(value=VALUES, limit=st.integers(0, 8), ensure_ascii=st.booleans(), indent=st.none() | st.just(1))
def test_count_is_that_of_the_parsed_value(value, limit, ensure_ascii, indent):
    body = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent).encode()
    assert has_more(body, limit) == (count_of(value) > limit)


@given(value=VALUES, times=st.integers(0, 4), rest=st.text(st.sampled_from('[]{}"\\,:x'), max_size=8))
def test_what_a_parser_sees_before_it_finds_a_fault_is_counted(value, times, rest):
    whole = [value] * times
    broken = json.dumps(whole).encode()[:-1] + rest.encode()
    assert has_more(broken, count_of(whole) - 1)
