from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pagewire.frontend.terminal.chat.markdown_stream import MarkdownStream, split_finished, without_early_code


def test_a_block_is_over_at_an_empty_line_outside_of_code():
    assert split_finished("one\n\ntwo") == ("one\n\n", "two")
    code = "```py\na = 1\n\nb = 2\n"
    assert split_finished(code) == ("", code)
    assert split_finished(code + "```\n\nrest") == (code + "```\n\n", "rest")
    assert split_finished("````\n```\n\n````\n") == ("", "````\n```\n\n````\n")


@given(st.lists(st.sampled_from(["word", " ", "\n", "```", "~~~", "\n\n", "# "]), max_size=30))
def test_nothing_is_lost_and_finished_blocks_stay_finished(pieces: list[str]):
    text = "".join(pieces)
    finished, rest = split_finished(text)
    assert finished + rest == text
    assert split_finished(rest)[0] == ""


def test_code_that_has_scrolled_away_is_not_drawn_again():
    code = "Text:\n```py\n" + "".join(f"{number}\n" for number in range(50))
    assert without_early_code(code, 3) == "Text:\n```py\n47\n48\n49\n"
    assert without_early_code(code, 60) == code
    assert without_early_code(code + "```\n", 3) == code + "```\n"
    assert without_early_code("", 3) == ""


def test_what_takes_long_to_draw_is_drawn_less_often():
    console = Console(file=io.StringIO(), force_terminal=True, width=40, height=6)
    times = iter([0.0, 1.0, 3.9, 4.0, 5.0, 9.0])  # begins and ends: each drawing takes a second
    with MarkdownStream(console, lambda: next(times)) as stream:
        for piece in ("a ", "b ", "c "):
            stream.add(piece, False)
    assert list(times) == [9.0]
    assert "a b c" in console.file.getvalue()


def test_an_answer_is_drawn_whole_and_what_a_terminal_obeys_is_not():
    console = Console(file=io.StringIO(), force_terminal=True, width=40, height=6)
    with MarkdownStream(console) as stream:
        stream.add("thinking", True)
        for piece in ["# Ti", "tle\n\n", "a **bold** ", "word\x1b[2J\n\n", "- one\n- two\n"]:
            stream.add(piece, False)
    output = console.file.getvalue()
    assert "\x1b[2J" not in output
    end = output[output.rindex("\x1b[?25h") :]  # what stays when the live part is gone
    assert "one" in end
    assert "thinking" in output
    assert "Title" in output
