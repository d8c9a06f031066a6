"""Find tags in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


def open_tag_length(text: str, tags: Sequence[str]) -> int:
    """Return how many characters at the end of `text` may be the beginning of one of `tags`; the whole tag is none."""
    longest = 0
    for tag in tags:
        for length in range(min(len(tag) - 1, len(text)), longest, -1):
            if text.endswith(tag[:length]):
                longest = length
                break
    return longest


def first_tag(text: str, tags: Sequence[str]) -> tuple[int, str] | None:
    """Return where the first of `tags` stands in `text`, and which it is; None if none does."""
    found = [(at, -len(tag), tag) for tag in tags if (at := text.find(tag)) >= 0]
    if not found:
        return None
    at, _, tag = min(found)
    return at, tag
