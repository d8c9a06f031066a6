from __future__ import annotations

from pagewire.frontend.bench.text_table import figure, percent, text_table


def test_columns_are_as_wide_as_they_must_be():
    assert text_table(["a", "b"], [["long", "1"], ["x", "222"]]) == "a       b\nlong    1\nx     222"


def test_what_is_not_known_is_a_dash():
    assert (figure(None), percent(None), figure(1.25, 2), percent(0.955)) == ("-", "-", "1.25", "95.5%")
