"""Vectors of prompts, as executors send them."""

from __future__ import annotations

import math
import sys
from array import array


def scale_to_one(vector: bytes) -> bytes:
    """Return a vector scaled to length 1; one of length 0 stays as it is.

    Args:
        vector: [hidden_size] float32, little-endian.
    """
    numbers = _read(vector)
    length = math.hypot(*numbers)
    if length == 0:
        return vector
    numbers = array("f", [number / length for number in numbers])
    return _swap_if_big(numbers).tobytes()


def _read(vector: bytes) -> array[float]:
    return _swap_if_big(array("f", vector))


def _swap_if_big(numbers: array[float]) -> array[float]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
