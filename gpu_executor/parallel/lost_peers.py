"""What becomes of a rank whose peers are gone in the midst of a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pagewire.ipc.errors import RankLost


@contextmanager
def expecting_peers() -> Iterator[None]:
    """Turn the error of a broken connection between ranks into one that says whose fault it is not.

    Raises:
        RankLost: a peer ended, or the connection to it did.
    """
    try:
        yield
    except RuntimeError as exc:  # the class of all that torch's process groups raise
        cause = str(exc).partition("\n")[0]
        raise RankLost(f"this rank lost the ranks that it computes with: {cause}") from exc
