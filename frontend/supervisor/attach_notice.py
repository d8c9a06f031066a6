"""A word to whoever starts a frontend for an engine that does not answer: mostly the address is another one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pagewire.ipc.endpoints import ipc_path

logger = logging.getLogger(__name__)

# An engine that has loaded its model answers within milliseconds.
NOTICE_AFTER_S = 2.0


@contextmanager
def noticing_silence(address: str, limit_s: float, *, after_s: float = NOTICE_AFTER_S) -> Iterator[None]:
    """Log once what is waited for and what to check, if the block takes long. Needs a running event loop.

    Args:
        address: the engine's.
        limit_s: when the attempt will be given up, for the text.
        after_s: seconds until the word is due.
    """
    notice = asyncio.get_running_loop().call_later(after_s, _warn, address, limit_s)
    try:
        yield
    finally:
        notice.cancel()


def _warn(address: str, limit_s: float) -> None:
    logger.warning("%s; waiting up to %.0f s", describe_silence(address), limit_s)


def describe_silence(address: str) -> str:
    """Return what can be seen of an address at which nobody answers, and what to check."""
    remedy = f"check that `pagewire engine --listen {address}` runs"
    path = ipc_path(address)
    if path is None:
        return f"no answer from {address} yet: {remedy}, and host, port and keys; it may still be loading its model"
    if not path.exists():
        return f"no engine listens at {address} yet, there is no file {path}: {remedy}"
    if not path.is_socket():
        return f"no engine can listen at {address}, {path} is a file of another kind: {remedy}"
    return f"no answer from {address} yet: {remedy}; it may still be loading its model, or have ended and left the file"
