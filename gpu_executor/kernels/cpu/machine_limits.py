"""What the machine can do, measured with the native library's own threads and instruction set."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .engine import NativeEngine

# Larger than any last-level cache that one socket has for long; read a slice at a time, so that a slice was pushed out
# when its turn comes again, and one reading is short enough to fall between interruptions.
_MEMORY_BYTES = 256 << 20
_SLICE_BYTES = 2 << 20
# Larger than a core's own cache, smaller than the shared one.
_CACHE_BYTES = 4 << 20
# Some 0.1 ms of products a thread.
_FLOAT_ROUNDS = 5000
_INTEGER_ROUNDS = 500


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Rates of all threads together, each the best of many short readings.

    Attributes:
        memory: bytes a second read from memory.
        cache: bytes a second read from the shared cache.
        float_products: operations a second of fp32 multiply-adds in registers, two each.
        integer_products: operations a second of sums of 8-bit products out of the level-1 cache, two a product.
    """

    memory: float
    cache: float
    float_products: float
    integer_products: float

    def best_with(self, other: MachineLimits) -> MachineLimits:
        """Return the higher of each rate: what interrupted one reading may have spared the other."""
        return MachineLimits(
            max(self.memory, other.memory),
            max(self.cache, other.cache),
            max(self.float_products, other.float_products),
            max(self.integer_products, other.integer_products),
        )


def fastest_s(call: Callable[[int], object], budget_s: float = 0.2, least_calls: int = 5) -> float:
    """Return the seconds of the fastest call; each is given its number, from 0 on.

    Args:
        call: what is timed.
        budget_s: calls go on until so much time has passed.
        least_calls: and there were so many.
    """
    best, calls, begin = float("inf"), 0, time.perf_counter()
    while calls < least_calls or time.perf_counter() - begin < budget_s:
        start = time.perf_counter()
        call(calls)
        best = min(best, time.perf_counter() - start)
        calls += 1
    return best


def measure_limits(engine: NativeEngine, budget_s: float = 0.3) -> MachineLimits:
    """Measure each limit for `budget_s`; needs 256 MiB."""
    library, handle = engine.library, engine.handle
    data = torch.ones(_MEMORY_BYTES, dtype=torch.uint8)
    num_slices = _MEMORY_BYTES // _SLICE_BYTES

    def read_slice(index: int) -> None:
        library.pagewire_read_memory(handle, data.data_ptr() + index % num_slices * _SLICE_BYTES, _SLICE_BYTES, 1)

    read = library.pagewire_read_memory
    floats = int(library.pagewire_multiply_floats(handle, _FLOAT_ROUNDS))
    integers = int(library.pagewire_multiply_integers(handle, _INTEGER_ROUNDS))
    return MachineLimits(
        memory=_SLICE_BYTES / fastest_s(read_slice, budget_s, num_slices),
        cache=_CACHE_BYTES / fastest_s(lambda _: read(handle, data.data_ptr(), _CACHE_BYTES, 1), budget_s),
        float_products=floats / fastest_s(lambda _: library.pagewire_multiply_floats(handle, _FLOAT_ROUNDS), budget_s),
        integer_products=integers
        / fastest_s(lambda _: library.pagewire_multiply_integers(handle, _INTEGER_ROUNDS), budget_s),
    )
