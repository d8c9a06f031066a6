"""The only door to KV blocks: admit, extend, fork, free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pagewire.ipc.block_hash import extend_digests

from ..request import Child, Request
from .block_pool import BlockPool
from .free_queue import Block
from .prefix_cache import PrefixCache


@dataclass(frozen=True, slots=True)
class Extension:
    """What a running child got for its next tokens.

    Attributes:
        new_block_ids: appended to its block table.
        copy: (source, target) of a copy on write, or None. The target stands in the block table at copy_index.
    """

    new_block_ids: list[int]
    copy: tuple[int, int] | None = None
    copy_index: int = 0


_NOTHING_NEW = Extension([])


class CacheManager:
    """Keeps block tables, reference counts and the prefix cache consistent.

    Args:
        num_blocks: size of the pool.
        block_size: tokens a block holds.
        enable_prefix_caching: without it, blocks are shared by the children of one request alone.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool) -> None:
        self.block_size = block_size
        self.prefix_cache = PrefixCache()
        self.pool = BlockPool(num_blocks, self.prefix_cache)
        self._caches_prefixes = enable_prefix_caching

    def try_admit(self, child: Child, *, num_reserved_blocks: int) -> bool:
        """Give a waiting child blocks for all its tokens, as many as possible out of the prefix cache.

        All or nothing: a prompt that is prefilled in chunks has its blocks from the first chunk on, so that two long
        prompts never take turns in throwing each other out. Sets block_ids and num_computed_tokens.

        Args:
            child: without blocks; its outputs from before a preemption count as prompt.
            num_reserved_blocks: must stay free besides; for the copies on write of a fork to come.
        """
        assert not child.block_ids
        assert child.num_computed_tokens == 0
        hits = self._find_hits(child)
        num_new = -(-len(child.token_ids) // self.block_size) - len(hits)
        # A hit that nobody uses lies in the free queue: it is taken out of there and can't be counted as free as well.
        num_hits_to_take = sum(block.ref_count == 0 for block in hits)
        if num_new + num_hits_to_take + num_reserved_blocks > self.pool.num_free_blocks:
            return False
        hit_ids = [block.block_id for block in hits]
        self.pool.share(hit_ids)
        child.block_ids = hit_ids + self.pool.take(num_new)
        child.num_computed_tokens = len(hits) * self.block_size
        child.num_registered_blocks = len(hits)
        child.num_own_slots = len(child.block_ids) * self.block_size
        return True

    def try_extend(self, child: Child, num_new_tokens: int) -> Extension | None:
        """Make room for a running child's next tokens, or return None and change nothing.

        A block that others name too is never written: the child gets a copy of its own. Only the first block of the
        new tokens can be such a one, the partly filled last block of a fork.
        """
        if child.num_computed_tokens + num_new_tokens <= child.num_own_slots:
            return _NOTHING_NEW
        block_ids = child.block_ids
        first = child.num_computed_tokens // self.block_size
        num_new = -(-(child.num_computed_tokens + num_new_tokens) // self.block_size) - len(block_ids)
        is_shared = first < len(block_ids) and self.pool.blocks[block_ids[first]].ref_count > 1
        if max(num_new, 0) + is_shared > self.pool.num_free_blocks:
            return None
        copy = self._copy_on_write(child, first) if is_shared else None
        new_block_ids = self.pool.take(num_new)
        block_ids.extend(new_block_ids)
        child.num_own_slots = len(block_ids) * self.block_size
        return Extension(new_block_ids, copy, first)

    def fork(self, parent: Child, child: Child) -> None:
        """Give a new child all blocks of its parent, the partly filled last one too."""
        self.pool.share(parent.block_ids)
        child.block_ids = list(parent.block_ids)
        child.digests = list(parent.digests)
        child.num_registered_blocks = parent.num_registered_blocks
        child.num_computed_tokens = parent.num_computed_tokens
        parent.num_own_slots = 0  # they share the last block now

    def register_full_blocks(self, child: Child) -> None:
        """Offer to the prefix cache what has become full and confirmed.

        Called when tokens were scheduled or committed. A block that a scheduled step fills can be found at once:
        whatever uses it runs in that step, where all rows store before any attends, or in a later one.
        """
        num_tokens = min(child.num_computed_tokens, len(child.token_ids))
        if num_tokens < (child.num_registered_blocks + 1) * self.block_size or not self._caches_prefixes:
            return
        num_full = num_tokens // self.block_size
        self._extend_digests(child, num_full)
        for index in range(child.num_registered_blocks, num_full):
            self.prefix_cache.insert(child.digests[index], self.pool.blocks[child.block_ids[index]])
        child.num_registered_blocks = num_full

    def free(self, child: Child) -> None:
        """Take all blocks from a child that finished or is preempted; steps in flight may still write to them."""
        self.pool.release(child.block_ids)
        child.block_ids = []
        child.num_computed_tokens = 0
        child.num_registered_blocks = 0
        child.num_own_slots = 0

    def forget_from(self, child: Child, first_block: int) -> None:
        """Make the content of a child's blocks from `first_block` on unfindable, because it was never written."""
        for digest in child.digests[first_block:]:
            block = self.prefix_cache.find(digest)
            if block is not None:
                self.prefix_cache.evict(block)

    def reset_prefix_cache(self) -> None:
        """Forget all cached content; what is in use stays in use."""
        self.prefix_cache.clear()

    def prepare(self, request: Request) -> None:
        """Hash a new request's tokens, while the executors compute and not when it is admitted."""
        if self._caches_prefixes and not request.needs_whole_prompt:
            for child in request.children.values():
                self._extend_digests(child, len(child.token_ids) // self.block_size)

    def num_filled_slots(self, children: Iterable[Child]) -> int:
        """Return how many slots of the used blocks hold a token, each counted once however many children share it.

        Args:
            children: all that have blocks.
        """
        num_empty = 0
        shared_tails: set[int] = set()
        for child in children:
            block_ids = child.block_ids
            # Only the children of one request share a block that is not full, until each has its own copy.
            if child.request.n > 1 and self.pool.blocks[block_ids[-1]].ref_count > 1:
                if block_ids[-1] in shared_tails:
                    continue
                shared_tails.add(block_ids[-1])
            num_empty += len(block_ids) * self.block_size - child.num_computed_tokens
        return self.pool.num_used_blocks * self.block_size - num_empty

    def check_invariants(self, children: Iterable[Child]) -> None:
        """Assert that the pool agrees with the block tables of `children`, which must be all that have one."""
        self.pool.check_invariants(child.block_ids for child in children)

    def _find_hits(self, child: Child) -> list[Block]:
        if not self._caches_prefixes or child.request.needs_whole_prompt:
            return []
        # The last token is always computed, for its logits: a hit covers at most num_tokens - 1 tokens.
        num_blocks = (len(child.token_ids) - 1) // self.block_size
        self._extend_digests(child, num_blocks)
        return self.prefix_cache.find_prefix(child.digests[:num_blocks])

    def _extend_digests(self, child: Child, num_blocks: int) -> None:
        extend_digests(child.digests, child.token_ids, self.block_size, child.request.extras, num_blocks)

    def _copy_on_write(self, child: Child, index: int) -> tuple[int, int]:
        source = child.block_ids[index]
        (target,) = self.pool.take(1)
        self.pool.release([source])
        child.block_ids[index] = target
        return source, target
