from __future__ import annotations

from pagewire.frontend.terminal.safe_text import safe_text


def test_what_a_terminal_would_obey_is_shown_instead():
    assert safe_text("a\x1b]0;title\x07b\x9b31m\r\n\u202ec") == "a\ufffd]0;title\ufffdb\ufffd31m\n\ufffdc"


def test_text_of_any_language_stays_as_it_is():
    text = "naïve\n\tдом 家 👩‍👧 ا"
    assert safe_text(text) == text
