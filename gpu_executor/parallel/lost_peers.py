"""What becomes of a rank whose peers are gone in the midst of a step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pagewire.ipc.errors import RankLost

_WHERE = re.compile(r"^\[[^\]]*\] *")  # a line of the library's source


@contextmanager
def expecting_peers() -> Iterator[None]:
    """Turn the error of a broken connection between ranks into one that says whose fault it is not.

    Raises:
        RankLost: a peer ended, or the connection to it did.
    """
    try:
        yield
    except RuntimeError as exc:  # the class of all that torch's process groups raise
        cause = _WHERE.sub("", str(exc)).partition("\n")[0].partition(". ")[0]  # the rest is advice to look at logs
        raise RankLost(f"this rank lost the ranks that it computes with: {cause}") from exc
