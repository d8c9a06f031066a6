"""How deep JSON is nested, found by a few passes in C: a body may have millions of characters."""

from __future__ import annotations

_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))


def is_deeper(body: bytes, limit: int) -> bool:
    """Whether well-formed JSON has more than `limit` objects and lists within one another."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    without_escapes = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # The quotes that are left bound strings: every other piece lies outside of them.
    outside = without_escapes.translate(_BRACKETS, _NOT_STRUCTURE).split(b'"')[::2]
    brackets = b"".join(outside)
    for _ in range(limit):
        brackets = brackets.replace(b"[]", b"")  # one level less everywhere
        if not brackets:
            return False
    return True
