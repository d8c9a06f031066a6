"""The blocks of one device: reference counts and free blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .free_queue import Block, FreeQueue
from .prefix_cache import PrefixCache


class BlockPool:
    """Owns every block; a block is free if and only if its ref_count is 0.

    Args:
        num_blocks: as many as the executor allocated.
        prefix_cache: told when a block's content is about to be overwritten.
    """

    def __init__(self, num_blocks: int, prefix_cache: PrefixCache) -> None:
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._free = FreeQueue(self.blocks)
        self._prefix_cache = prefix_cache

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be taken; cached ones among them."""
        return len(self._free)

    @property
    def num_used_blocks(self) -> int:
        """Blocks that some block table names."""
        return len(self.blocks) - len(self._free)

    def take(self, count: int) -> list[int]:
        """Take `count` free blocks for new content; the caller has checked that they exist."""
        taken = []
        for _ in range(count):
            block = self._free.pop()
            self._prefix_cache.evict(block)
            block.ref_count = 1
            taken.append(block.block_id)
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Count one more reference to each block; a free one (a prefix cache hit) is in use from now on."""
        for block_id in block_ids:
            block = self.blocks[block_id]
            if block.ref_count == 0:
                self._free.remove(block)
            block.ref_count += 1

    def release(self, block_ids: list[int]) -> None:
        """Count one reference less to each block of a block table.

        The last block comes free first and so is taken again first: a head that requests share outlives its tails.
        Blocks that can't be found again have no worth and are taken before all others.
        """
        for block_id in reversed(block_ids):
            block = self.blocks[block_id]
            assert block.ref_count > 0, f"block {block_id} is freed twice"
            block.ref_count -= 1
            if block.ref_count == 0:
                if block.digest is None:
                    self._free.prepend(block)
                else:
                    self._free.append(block)

    def check_invariants(self, block_tables: Iterable[list[int]]) -> None:
        """Assert that reference counts, block tables and the free queue agree.

        Args:
            block_tables: all that exist.
        """
        references = Counter(block_id for table in block_tables for block_id in table)
        free_ids = [block.block_id for block in self._free]
        assert len(free_ids) == len(set(free_ids)) == len(self._free), "a block is twice in the free queue"
        free = set(free_ids)
        for block in self.blocks:
            expected = references[block.block_id]
            assert block.ref_count == expected, (
                f"block {block.block_id}: ref_count {block.ref_count}, {expected} references"
            )
            assert (block.ref_count == 0) == (block.block_id in free), f"block {block.block_id} is both free and used"
        assert len(free) + self.num_used_blocks == len(self.blocks), "blocks were lost"
        self._prefix_cache.check_invariants()
