"""JSON character by character, beside the standard library's."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.frontend.answers.json_scanner import JsonScanner, State


def scan(text: str) -> State:
    scanner = JsonScanner()
    for number, character in enumerate(text):
        if scanner.state in (State.DONE, State.BROKEN):
            return State.BROKEN if number < len(text) else scanner.state
        scanner.feed(character)
    return scanner.state


_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)


@settings(derandomize=True, deadline=None)
@given(
    value=st.lists(_VALUES, max_size=4) | st.dictionaries(st.text(max_size=4), _VALUES, max_size=4),
    indent=st.sampled_from([None, 1]),
)
def test_json_is_done_with_its_last_character(value, indent):
    text = json.dumps(value, indent=indent)
    scanner = JsonScanner()
    for character in text[:-1]:
        scanner.feed(character)
        assert scanner.state not in (State.DONE, State.BROKEN)
    scanner.feed(text[-1])
    assert scanner.state is State.DONE
    assert scanner.depth == 0


@settings(derandomize=True, deadline=None)
@given(st.text(alphabet='{}[]",:\\u0a1-.etruflsn ', max_size=12))
def test_what_is_done_is_json_and_what_is_broken_is_not(text):
    text = "{" + text
    state = scan(text)
    try:
        json.loads(text)
    except ValueError:
        assert state is not State.DONE
    else:
        assert state in (State.DONE, State.BROKEN if text.endswith(" ") else State.DONE)


def test_nesting_and_numbers_are_bounded():
    assert scan("[" * 201) is State.BROKEN
    assert scan("[" + "1" * 401 + "]") is State.BROKEN
