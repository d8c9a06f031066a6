from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagewire.checkpoint.byte_spans import find_overlap

Span = tuple[int, int, str]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=8))
def test_two_spans_overlap_if_they_share_a_byte(places: list[tuple[int, int]]) -> None:
    spans = [(begin, begin + size, str(index)) for index, (begin, size) in enumerate(places)]
    owners: dict[int, str] = {}
    shared = False
    for begin, end, name in spans:
        for byte in range(begin, end):
            shared |= byte in owners
            owners[byte] = name
    found = find_overlap(spans)
    assert (found is not None) == shared
    if found is not None:
        first, second = (spans[int(name)] for name in found)
        assert max(first[0], second[0]) < min(first[1], second[1])
