"""Think blocks, however their text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.frontend.answers.collector import merge_parts
from pagewire.frontend.answers.parts import AnswerPart, ReasoningPart, TextPart
from pagewire.frontend.answers.reader import AnswerReader, TextReader
from pagewire.frontend.answers.reasoning import ReasoningSplitter

# (starts inside, text, parts)
SAMPLES = [
    (False, "<think>\nHm.\n\nYes.\n</think>\n\nHello <b>", [ReasoningPart("Hm.\n\nYes."), TextPart("Hello <b>")]),
    (False, " \n<think>a</think>b</think>", [ReasoningPart("a"), TextPart("b</think>")]),
    (False, "Hello <think>a</think>", [TextPart("Hello <think>a</think>")]),
    (False, "  <thin", [TextPart("  <thin")]),
    (False, "<think>\n\n</think>\n\nHello", [TextPart("Hello")]),
    (False, "<think>never closed </thin", [ReasoningPart("never closed </thin")]),
    (False, "", []),
    (True, "Hm.</think> Hello", [ReasoningPart("Hm."), TextPart("Hello")]),
    (True, "<think>\nHm.</think>Hello \n", [ReasoningPart("Hm."), TextPart("Hello \n")]),
    (True, "\n <th", [ReasoningPart("<th")]),
    (True, "cut", [ReasoningPart("cut")]),
    (True, "</think>\n", []),
]


def read(pieces: list[str], *, starts_inside: bool, shows: bool = True) -> list[AnswerPart]:
    reader = AnswerReader(ReasoningSplitter(starts_inside=starts_inside, shows=shows), TextReader())
    parts = [part for piece in pieces for part in reader.push(piece)]
    return merge_parts([*parts, *reader.finish()])


@pytest.mark.parametrize(("starts_inside", "text", "parts"), SAMPLES)
def test_every_cut_in_two_gives_the_same(starts_inside, text, parts):
    assert read(list(text), starts_inside=starts_inside) == parts
    for at in range(len(text) + 1):
        assert read([text[:at], text[at:]], starts_inside=starts_inside) == parts


@settings(derandomize=True, deadline=None)
@given(
    starts_inside=st.booleans(),
    fragments=st.lists(st.sampled_from(["<think>", "</think>", "<", "a", " ", "\n", "</", "think>"]), max_size=10),
    data=st.data(),
)
def test_any_text_and_split_is_read_alike(starts_inside, fragments, data):
    text = "".join(fragments)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(pieces, starts_inside=starts_inside) == read([text], starts_inside=starts_inside)


def test_reasoning_that_is_not_to_be_shown_is_left_out():
    assert read(["<think>secret</think>", "open"], starts_inside=False, shows=False) == [TextPart("open")]
