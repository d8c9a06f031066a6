"""Where the tensors of a file lie: two that share bytes are the mark of a damaged table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable


def find_overlap(spans: Iterable[tuple[int, int, str]]) -> tuple[str, str] | None:
    """Return the names of two tensors that share a byte, None if no two do.

    Args:
        spans: first byte, one past the last byte, and name of each tensor; those without bytes share none.
    """
    placed = sorted(span for span in spans if span[0] < span[1])
    for (_, end, first), (begin, _, second) in itertools.pairwise(placed):
        if begin < end:
            return first, second
    return None
