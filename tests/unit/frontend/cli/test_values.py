from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.frontend.cli.values import Choice, Number, Text, WholeNumber


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("-1", -1), ("+7", 7), ("4096", 4096), ("1k", 1000), ("1K", 1024), ("25.6k", 25_600),
        ("1.5K", 1536), ("1M", 1024**2), ("1m", 10**6), ("2g", 2 * 10**9), ("2G", 2 * 1024**3), ("1t", 10**12),
        ("1T", 1024**4), (" 5 ", 5), ("0.1k", 100), ("1.1g", 1_100_000_000), ("4.0", 4),
    ],
)  # fmt: skip
def test_units_count_in_thousands_or_1024s(text: str, number: int):
    assert WholeNumber().convert(text, None, None) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        "k",
        "1kk",
        "1x",
        "1e3",
        "0x10",
        "1.5",
        "1.2345k",
        "1.1K",
        "nan",
        "inf",
        "1_000",
        "١",
        "auto",
        True,
        [],
        "9" * 5000,
    ],
)
def test_what_is_no_whole_number_is_refused(text: object):
    with pytest.raises(click.BadParameter):
        WholeNumber().convert(text, None, None)


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_int_reads_back(number: int):
    assert WholeNumber().convert(str(number), None, None) == number
    assert WholeNumber().convert(number, None, None) == number


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "9223373t"])
def test_what_no_message_could_carry_is_refused(text: str):
    with pytest.raises(click.BadParameter, match="beyond 64 bits"):
        WholeNumber().convert(text, None, None)


@pytest.mark.parametrize("text", ["auto", "Auto", "-1", -1])
def test_an_automatic_number_is_none(text: object):
    assert WholeNumber(is_automatic=True).convert(text, None, None) is None


def test_a_number_is_a_float():
    assert Number().convert("0.25", None, None) == 0.25
    assert Number().convert(1, None, None) == 1.0
    for wrong in ("half", "90%", True, None, [1]):
        with pytest.raises(click.BadParameter, match=r"0\.9"):
            Number().convert(wrong, None, None)


def test_a_text_is_neither_empty_nor_the_next_flag_nor_a_number_of_a_yaml_file():
    assert Text().convert("-", None, None) == "-"
    for wrong, part in (("", "empty"), ("--port", "--port follows"), (123, "quotes")):
        with pytest.raises(click.BadParameter, match=part):
            Text().convert(wrong, None, None)


def test_a_choice_knows_aliases_and_says_why_a_word_is_refused():
    choice = Choice(["auto", "float16"], {"half": "float16"}, {"fp8": "not built"})
    assert choice.convert("HALF", None, None) == "float16"
    assert choice.convert("Auto", None, None) == "auto"
    with pytest.raises(click.BadParameter, match="fp8 is not supported yet: not built; choose from auto, float16"):
        choice.convert("fp8", None, None)
    with pytest.raises(click.BadParameter, match="'x' is not one of auto, float16"):
        choice.convert("x", None, None)
