from __future__ import annotations

import pytest

from pagewire.engine_core.kv.free_queue import Block, FreeQueue


def build_queue(count=3):
    blocks = [Block(i) for i in range(count)]
    return FreeQueue(blocks), blocks


def ids(queue):
    return [block.block_id for block in queue]


def test_appended_blocks_are_taken_last_and_prepended_ones_first():
    queue, blocks = build_queue()
    taken = [queue.pop() for _ in range(2)]
    assert taken == blocks[:2]
    queue.append(taken[0])
    queue.prepend(taken[1])
    assert ids(queue) == [1, 2, 0]


@pytest.mark.parametrize(("index", "left"), [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])])
def test_block_is_removed_from_any_place(index, left):
    queue, blocks = build_queue()
    queue.remove(blocks[index])
    assert (ids(queue), len(queue)) == (left, 2)


def test_block_can_come_back_after_the_queue_was_empty():
    queue, blocks = build_queue(1)
    queue.append(queue.pop())
    assert ids(queue) == [0]
    queue.pop()
    assert (ids(queue), len(queue)) == ([], 0)
    with pytest.raises(AssertionError, match="no free block"):
        queue.pop()
    assert blocks[0].previous is None


def test_block_is_never_queued_twice():
    queue, blocks = build_queue()
    with pytest.raises(AssertionError, match="in the free queue already"):
        queue.append(blocks[1])
