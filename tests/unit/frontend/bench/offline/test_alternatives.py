from __future__ import annotations

from pagewire.frontend.bench.dataset.datasets import SampleRequest
from pagewire.frontend.bench.offline.alternatives import (
    longest_batch_paged,
    longest_batch_reserved,
    static_slot_occupancy,
)


def requests(*output_lens: int, prompt: int = 10) -> list[SampleRequest]:
    return [SampleRequest("p", prompt, length) for length in output_lens]


def test_a_static_batch_waits_for_its_longest_answer():
    assert static_slot_occupancy(requests(1, 4, 2, 2, 9), 2) == (1 + 4 + 2 + 2) / (2 * 4 + 2 * 2)


def test_the_batch_that_empties_the_queue_does_not_count():
    assert static_slot_occupancy(requests(1, 4, 1, 100), 2) == 5 / 8
    assert static_slot_occupancy(requests(1, 4), 2) is None


def test_blocks_fit_more_requests_than_reservation():
    # 10 + 6 tokens are one block, 10 + 7 are two.
    assert longest_batch_paged(requests(6, 7), num_blocks=30, block_size=16) == 20
    assert longest_batch_reserved(100, num_blocks=30, block_size=16) == 30 // 7
