"""Tags at the end of a text that goes on."""

from __future__ import annotations

from pagewire.frontend.answers.tags import first_tag, open_tag_length


def test_the_longest_beginning_of_a_tag_is_held_back():
    tags = ("<tool_call>", "<|x|>")
    assert open_tag_length("text", tags) == 0
    assert open_tag_length("text <", tags) == 1
    assert open_tag_length("text <tool_", tags) == 6
    assert open_tag_length("text <<|", tags) == 2
    assert open_tag_length("text <tool_call>", tags) == 0
    assert open_tag_length("<tool_call", tags) == 10
    assert open_tag_length("", tags) == 0


def test_the_first_tag_counts_and_of_two_at_one_place_the_longest():
    assert first_tag("a <b> <a>", ("<a>", "<b>")) == (2, "<b>")
    assert first_tag("a [X] [XY]", ("[X]", "[X] [XY]")) == (2, "[X] [XY]")
    assert first_tag("nothing", ("<a>",)) is None
