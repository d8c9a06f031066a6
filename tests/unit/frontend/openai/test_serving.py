"""What handlers share."""

from __future__ import annotations

import pytest

from pagewire.frontend.openai.serving import is_safe_id


@pytest.mark.parametrize("text", ["a", "A-1._:z", "x" * 128])
def test_plain_ids_are_safe(text):
    assert is_safe_id(text)


@pytest.mark.parametrize("text", ["", "x" * 129, "a b", "a\n", "a\r\nX: y", "ä", '"', "a/b", "\x00"])
def test_ids_that_could_break_logs_or_headers_are_not(text):
    assert not is_safe_id(text)
