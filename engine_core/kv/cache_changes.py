"""What entered and left the prefix cache, noted for whoever chooses among several cores."""

from __future__ import annotations

from pagewire.ipc.block_hash import BlockDigest, block_key
from pagewire.ipc.outputs import PrefixCacheChanges


class CacheChanges:
    """The last change of each block since they were taken: as many entries as blocks were touched, however often."""

    def __init__(self) -> None:
        self._is_stored: dict[int, bool] = {}  # by the block's key
        self._was_cleared = False

    def store(self, digest: BlockDigest) -> None:
        """Note that a block can be found."""
        self._is_stored[block_key(digest)] = True

    def evict(self, digest: BlockDigest) -> None:
        """Note that a block can't be found any more."""
        self._is_stored[block_key(digest)] = False

    def clear(self) -> None:
        """Note that no block can be found."""
        self._is_stored.clear()
        self._was_cleared = True

    def take(self) -> PrefixCacheChanges | None:
        """Return the changes since the last call, None if there are none."""
        if not self._is_stored and not self._was_cleared:
            return None
        changes = PrefixCacheChanges(
            stored=[key for key, is_stored in self._is_stored.items() if is_stored],
            evicted=[key for key, is_stored in self._is_stored.items() if not is_stored],
            is_snapshot=self._was_cleared,
        )
        self._is_stored = {}
        self._was_cleared = False
        return changes
