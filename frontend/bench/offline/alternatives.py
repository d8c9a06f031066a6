"""What older ways of serving would make of the same requests: static batching, contiguous reservation. Computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..dataset.datasets import SampleRequest


def static_slot_occupancy(requests: Sequence[SampleRequest], batch_size: int) -> float | None:
    """Return rows that work / rows there are of static batching, until the queue is empty.

    A static batch runs until its longest answer is complete; rows whose answer was shorter idle meanwhile. Prompts
    count one step each, as if a prefill took no longer than a decode, which flatters static batching.

    Args:
        requests: in the order of arrival.
        batch_size: rows.

    Returns:
        The share, from 0 to 1; None if the first batch empties the queue.
    """
    busy = available = 0
    # The last batch starts when the queue is empty.
    for start in range(0, len(requests) - batch_size, batch_size):
        lengths = [request.num_output_tokens for request in requests[start : start + batch_size]]
        busy += sum(lengths)
        available += batch_size * max(lengths)
    return busy / available if available else None


def longest_batch_paged(requests: Sequence[SampleRequest], num_blocks: int, block_size: int) -> int:
    """Return how many requests of this mean size fit into the pool at once, each at its full length."""
    blocks = [_num_blocks(one.num_prompt_tokens + one.num_output_tokens, block_size) for one in requests]
    return num_blocks * len(blocks) // _total(blocks)


def longest_batch_reserved(max_model_len: int, num_blocks: int, block_size: int) -> int:
    """Return how many requests fit if each reserves the longest context in one piece."""
    return num_blocks // _num_blocks(max_model_len, block_size)


def _num_blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _total(values: Iterable[int]) -> int:
    return max(sum(values), 1)
