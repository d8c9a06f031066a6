"""Text of others on its way to a terminal, which obeys certain characters: a title, a color, the clipboard."""

from __future__ import annotations

import re

# C0 but for line feed and tab, delete, C1; and what turns the direction of writing around unseen.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def safe_text(text: str) -> str:
    """Return the text with each character that a terminal would obey shown as U+FFFD.

    Carriage returns are left out: many a text has one before each line feed.
    """
    return _OBEYED.sub("\ufffd", text.replace("\r", ""))
