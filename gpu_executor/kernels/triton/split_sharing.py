"""How many programs take turns with the splits of a tile, and how many requests do so in one launch.

Programs share a tile's splits for two reasons: so that few requests fill a device, and so that no program is left with
a long request when those of short ones are done. Splits that are shared leave their results in memory (the partials),
which is bounded: where the partials of a step would take more, its requests are launched in parts, one after the other
in the same memory.

None of it changes a result: each split is summed by itself, and splits are merged in their order.
"""

from __future__ import annotations

from typing import NamedTuple

# Programs that a multiprocessor shall have to choose from, for one of them to read while others compute.
_PROGRAMS_PER_MULTIPROCESSOR = 4
# The most keys that one program reads where others could help: 4 MiB of 128 channels of 16 bits, some 0.1 ms.
_MAX_KEYS_PER_PROGRAM = 8192
# Programs of a launch whose requests may all be short, for each one that the device is full with. One that has nothing
# to do still costs the device some nanoseconds.
_MAX_IDLE_FACTOR = 8
# Partials may take this share of the device's memory, and that much: what they take is missing for keys and values,
# twice where graphs are captured. 640 MiB are 157 decodes of 32 heads at 131,072 tokens: 256 run in two parts.
_WORKSPACE_SHARE = 1 / 100
_MAX_WORKSPACE_BYTES = 640 * 2**20


class Sharing(NamedTuple):
    """How a launch's splits are shared.

    Attributes:
        num_slots: programs that share the splits of a tile; 1: none are shared, and there are no partials.
        requests_at_once: requests of one launch.
    """

    num_slots: int
    requests_at_once: int


class Splits(NamedTuple):
    """The work of a launch, if it is a single one.

    Attributes:
        num_requests: in the step, at least one.
        num_programs: with one slot.
        max_splits: the most that a row sees.
        split_len: keys of a split.
        partial_bytes: of all rows that the launch may have.
        is_divisible: requests have equal shares of the programs and of the partials.
        may_be_short: `max_splits` is what requests may have: it says nothing of those of this step, or little.
    """

    num_requests: int
    num_programs: int
    max_splits: int
    split_len: int
    partial_bytes: int
    is_divisible: bool
    may_be_short: bool


def largest_workspace_bytes(device_bytes: int) -> int:
    """Return the most that partials take at any time.

    A profile run needs no allowance for it if it has a step with decodes whose `max_seq_len` is the longest context:
    attention allocates what that takes.

    Args:
        device_bytes: the device's memory.
    """
    return min(int(_WORKSPACE_SHARE * device_bytes), _MAX_WORKSPACE_BYTES)


def share_splits(splits: Splits, *, num_multiprocessors: int, workspace_bytes: int) -> Sharing:
    """Return how the splits of a launch are shared.

    Args:
        splits: what there is to do.
        num_multiprocessors: of the device.
        workspace_bytes: what partials may take.
    """
    num_requests = splits.num_requests
    if splits.is_divisible:
        fitting = workspace_bytes * num_requests // splits.partial_bytes
    else:
        fitting = num_requests if splits.partial_bytes <= workspace_bytes else 0
    whole = Sharing(1, num_requests)
    if fitting == 0:
        return whole
    # Parts of equal size: the last one fills the device as well as the first.
    at_once = _cdiv(num_requests, _cdiv(num_requests, fitting))
    num_slots = _num_slots(splits, _cdiv(splits.num_programs * at_once, num_requests), num_multiprocessors)
    return whole if num_slots == 1 else Sharing(num_slots, at_once)


def _num_slots(splits: Splits, num_programs: int, num_multiprocessors: int) -> int:
    full = _PROGRAMS_PER_MULTIPROCESSOR * num_multiprocessors
    to_fill = 1 if 2 * num_programs > full else full // num_programs
    to_balance = _cdiv(splits.max_splits * splits.split_len, _MAX_KEYS_PER_PROGRAM)
    if splits.may_be_short:
        to_balance = min(to_balance, _MAX_IDLE_FACTOR * full // num_programs)
    return min(splits.max_splits, max(to_fill, to_balance))


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
