from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.frontend.text.stop_strings import StopResult, StopStrings

# Few letters, so that stop strings overlap themselves, each other and the cuts.
letters = st.text("abc", max_size=24)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def run(
    stops: list[str], pieces: list[tuple[str, bool]], *, include: bool = False
) -> tuple[str, str | None, list[str]]:
    """Return the output, the stop string that ended it, and what was sent after each piece."""
    matcher = StopStrings(stops, include_in_output=include)
    sent: list[str] = []
    for text, can_stop in pieces:
        result = matcher.push(text, can_stop=can_stop)
        sent.append(result.text_to_emit)
        if result.matched is not None:
            return "".join(sent), result.matched, sent
    return "".join(sent) + matcher.flush(), None, sent


def oracle(stops: list[str], pieces: list[tuple[str, bool]], *, include: bool) -> tuple[str, str | None]:
    """The rule itself, character by character over the whole text."""
    text, ends_allowed = "", set()
    for piece, can_stop in pieces:
        if can_stop:
            ends_allowed |= set(range(len(text) + 1, len(text) + len(piece) + 1))
        text += piece
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop) and end in ends_allowed]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(stop_lists, st.lists(st.tuples(letters, st.booleans()), max_size=8), st.booleans())
def test_output_is_the_text_up_to_the_first_completed_stop_however_it_is_cut(
    stops: list[str], pieces: list[tuple[str, bool]], include: bool
) -> None:
    output, matched, _ = run(stops, pieces, include=include)
    assert (output, matched) == oracle(stops, pieces, include=include)


@given(stop_lists, st.lists(letters, max_size=8))
def test_nothing_is_sent_that_may_still_become_a_stop_and_nothing_else_is_held(
    stops: list[str], pieces: list[str]
) -> None:
    matcher = StopStrings(stops, include_in_output=False)
    text = sent = ""
    for piece in pieces:
        result = matcher.push(piece)
        text, sent = text + piece, sent + result.text_to_emit
        if result.matched is not None:
            return
        open_ends = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
        assert text == sent + text[len(text) - max(open_ends, default=0) :]


@given(stop_lists, st.lists(letters, max_size=8))
def test_nothing_is_held_back_when_the_stop_string_is_part_of_the_output(stops: list[str], pieces: list[str]) -> None:
    matcher = StopStrings(stops, include_in_output=True)
    for piece in pieces:
        result = matcher.push(piece)
        if result.matched is not None:
            return
        assert result.text_to_emit == piece


def test_no_prefix_of_a_stop_leaks() -> None:
    _, matched, sent = run(["DEFGHIJ"], [("DE", True), ("FGH", True), ("I", True), ("J", True)])
    assert matched == "DEFGHIJ"
    assert sent == ["", "", "", ""]


@pytest.mark.parametrize(("include", "output"), [(False, "one t"), (True, "one two")])
def test_stop_inside_and_across_pieces_ends_the_text_at_its_own_border(include: bool, output: str) -> None:
    assert run(["wo"], [("one t", True), ("wo three", True)], include=include)[:2] == (output, "wo")
    assert run(["wo"], [("one tw", True), ("o three", True)], include=include)[:2] == (output, "wo")


def test_earliest_completing_stop_wins_whatever_the_order_of_the_list() -> None:
    for stops in (["abcd", "bc"], ["bc", "abcd"]):
        assert run(stops, [("xabcd", True)])[:2] == ("xa", "bc")


def test_of_stops_that_complete_together_the_longest_wins() -> None:
    for stops in (["END", "THE END"], ["THE END", "END"]):
        assert run(stops, [("at THE END.", True)])[:2] == ("at ", "THE END")


def test_stop_completed_before_it_may_count_is_text_but_one_that_straddles_counts() -> None:
    assert run(["aa"], [("aa", False), ("b", True)])[:2] == ("aab", None)
    assert run(["aa"], [("a", False), ("a", False), ("a", True)])[:2] == ("a", "aa")
    assert run(["abcX", "bc"], [("abc", False), ("d", True)])[:2] == ("abcd", None)


def test_without_stop_strings_text_passes_through() -> None:
    matcher = StopStrings([], include_in_output=False)
    assert matcher.push("anything") == StopResult("anything", None)
    assert matcher.flush() == ""


def test_held_text_is_flushed_once() -> None:
    matcher = StopStrings(["abc"], include_in_output=False)
    assert matcher.push("xab") == StopResult("x", None)
    assert matcher.flush() == "ab"
    assert matcher.flush() == ""


def test_empty_stop_string_is_a_programming_error_here() -> None:
    with pytest.raises(AssertionError):
        StopStrings(["END", ""], include_in_output=False)
