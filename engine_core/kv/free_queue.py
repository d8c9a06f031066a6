"""The order in which free blocks are taken again."""

from __future__ import annotations

from collections.abc import Iterator

from pagewire.ipc.block_hash import BlockDigest


class Block:
    """One KV block of the device's pool, as the core sees it.

    Attributes:
        ref_count: entries of block tables that name it.
        digest: set while the prefix cache can find it.
        previous, next: neighbours in the free queue; None outside of it.
    """

    __slots__ = ("block_id", "digest", "next", "previous", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.digest: BlockDigest | None = None
        self.previous: Block | None = None
        self.next: Block | None = None


class FreeQueue:
    """Free blocks, the next one to take at the head.

    The links live in the blocks: a prefix cache hit takes its block out of the middle in constant time and nothing is
    allocated. Empty content goes to the head, cached content to the tail, so what is taken first is worthless or the
    least recently used.
    """

    def __init__(self, blocks: list[Block]) -> None:
        # One sentinel closes the ring, so that no operation has a special case for an end.
        self._ring = Block(-1)
        self._ring.previous = self._ring.next = self._ring
        self._length = 0
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._ring.next
        while block is not None and block is not self._ring:
            yield block
            block = block.next

    def append(self, block: Block) -> None:
        """Put a block where it is taken last."""
        self._insert(block, before=self._ring)

    def prepend(self, block: Block) -> None:
        """Put a block where it is taken first."""
        head = self._ring.next
        assert head is not None
        self._insert(block, before=head)

    def pop(self) -> Block:
        """Take the head; the queue must not be empty."""
        head = self._ring.next
        assert head is not None
        assert head is not self._ring, "no free block; the caller counts before it takes"
        self.remove(head)
        return head

    def remove(self, block: Block) -> None:
        """Take a block out of any place."""
        assert block.previous is not None
        assert block.next is not None
        block.previous.next = block.next
        block.next.previous = block.previous
        block.previous = block.next = None
        self._length -= 1

    def _insert(self, block: Block, *, before: Block) -> None:
        assert block.next is None, f"block {block.block_id} is in the free queue already"
        assert before.previous is not None
        block.previous, block.next = before.previous, before
        before.previous.next = block
        before.previous = block
        self._length += 1
