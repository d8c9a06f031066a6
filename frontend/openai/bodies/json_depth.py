"""How many objects and lists JSON holds, and how deep, by a few passes in C: a body may have millions of characters."""

from __future__ import annotations

_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))


def has_more(body: bytes, limit: int) -> bool:
    """Whether JSON has more than `limit` objects and lists; of text that is none, what a parser would get to see."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    return _brackets_outside_strings(body).count(b"[") > limit


def is_deeper(body: bytes, limit: int) -> bool:
    """Whether well-formed JSON has more than `limit` objects and lists within one another."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    brackets = _brackets_outside_strings(body)
    for _ in range(limit):
        brackets = brackets.replace(b"[]", b"")  # one level less everywhere
        if not brackets:
            return False
    return True


def _brackets_outside_strings(body: bytes) -> bytes:
    """Return the brackets that open and close, as [ and ]; behind what is malformed, others may be among them."""
    without_escapes = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # The quotes that are left bound strings: every other piece lies outside of them.
    return b"".join(without_escapes.translate(_BRACKETS, _NOT_STRUCTURE).split(b'"')[::2])
