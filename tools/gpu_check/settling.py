"""Waits until an engine has captured its graphs, which it does while nobody asks for anything.

A request that comes in the middle of a capture waits for it: a measurement would have a second of somebody else's work
in its first token. No message says that all is captured, but from then on a request after a pause is answered as
quickly as one right after another, before which there is no time to begin a capture.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_PAUSE_S = 0.25  # many times as long as an executor waits for work before it captures
_IN_A_ROW = 3
_SLOWER = 3.0  # times the quickest answer without a pause before it


def settle(
    ask: Callable[[], object],
    limit_s: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Ask for one token after a pause, and at once for another, until the first answers are quick some times in a row.

    Args:
        ask: sends one short request and returns when it is answered.
        limit_s: seconds after which it is given up.
        clock: seconds, monotonic.
        pause: waits for so many seconds.

    Returns:
        Whether they were.
    """
    end = clock() + limit_s
    quickest, in_a_row = float("inf"), 0
    while clock() < end:
        pause(_PAUSE_S)
        started = clock()
        ask()
        answered = clock()
        ask()
        quickest = min(quickest, clock() - answered)
        in_a_row = in_a_row + 1 if answered - started <= _SLOWER * quickest else 0
        if in_a_row == _IN_A_ROW:
            return True
    return False
