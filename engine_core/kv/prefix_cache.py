"""Which block holds which content: digest -> block, for full blocks only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagewire.ipc.block_hash import BlockDigest

from .cache_changes import CacheChanges
from .free_queue import Block


class PrefixCache:
    """Finds full blocks again by the digest of their content.

    A block stays findable when nobody uses it any more, until the pool takes it for other content; the eviction order
    is the free queue's. Of two blocks with equal content the first stays: block tables are only appended to, so equal
    blocks are never merged.

    Attributes:
        changes: told of every block that enters or leaves; None while nobody wants to know.
    """

    def __init__(self) -> None:
        self.changes: CacheChanges | None = None
        self._blocks: dict[BlockDigest, Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def digests(self) -> Iterable[BlockDigest]:
        """What can be found."""
        return self._blocks.keys()

    def find(self, digest: BlockDigest) -> Block | None:
        """Return the block with that content, or None."""
        return self._blocks.get(digest)

    def find_prefix(self, digests: Sequence[BlockDigest]) -> list[Block]:
        """Return the blocks of the longest known head of a digest chain."""
        hits: list[Block] = []
        for digest in digests:
            block = self._blocks.get(digest)
            if block is None:
                break
            hits.append(block)
        return hits

    def insert(self, digest: BlockDigest, block: Block) -> None:
        """Make a full block findable, unless one with the same content is."""
        assert block.digest is None, f"block {block.block_id} got new content without being evicted"
        if digest not in self._blocks:
            self._blocks[digest] = block
            block.digest = digest
            if self.changes is not None:
                self.changes.store(digest)

    def evict(self, block: Block) -> None:
        """Forget a block's content; one without is left alone."""
        if block.digest is not None:
            del self._blocks[block.digest]
            if self.changes is not None:
                self.changes.evict(block.digest)
            block.digest = None

    def clear(self) -> None:
        """Forget everything. Requests that use the blocks go on."""
        for block in self._blocks.values():
            block.digest = None
        self._blocks.clear()
        if self.changes is not None:
            self.changes.clear()

    def check_invariants(self) -> None:
        """Assert that map and blocks say the same."""
        for digest, block in self._blocks.items():
            assert block.digest == digest, f"block {block.block_id} is cached under a digest that it does not have"
