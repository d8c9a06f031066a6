"""When each request of a benchmark is sent."""

from __future__ import annotations

import math
import random
from itertools import accumulate


def arrival_times_s(count: int, *, rate: float, burstiness: float, seed: int) -> list[float]:
    """Return when each of `count` requests is sent, in seconds since the start, in order.

    The gaps are gamma-distributed with mean 1 / rate. All are then scaled so that the last request is sent at
    count / rate: the offered load is the same for every seed and burstiness, and only its shape differs.

    Args:
        count: how many, at least 1.
        rate: requests a second on average; infinite for all at once.
        burstiness: shape of the gamma distribution: 1 makes a Poisson process, less is burstier, infinite is even.
        seed: the same one gives the same times.
    """
    if math.isinf(rate):
        return [0.0] * count
    if math.isinf(burstiness):
        return [(index + 1) / rate for index in range(count)]
    rng = random.Random(f"arrivals {seed}")  # noqa: S311 - a load pattern, no secret
    times = list(accumulate(rng.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in range(count)))
    # A tiny shape can draw gaps that all round to zero; then the load is one burst at the end.
    stretch = count / rate / times[-1] if times[-1] > 0 else math.inf
    return [time * stretch if time else 0.0 for time in times] if math.isfinite(stretch) else [count / rate] * count
