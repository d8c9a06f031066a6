"""The clients that want to know what the prefix cache holds: all of it when they ask, and from then on what changes.

They divide requests among several cores. A change is worth little to them at once and nothing when it is undone, so
changes are gathered: a message at most every 50 ms, and one when the work is done.
"""

from __future__ import annotations

from pagewire.ipc.block_hash import block_key
from pagewire.ipc.channels import ClientId
from pagewire.ipc.outputs import PrefixCacheChanges

from ..kv.cache_changes import CacheChanges
from ..kv.prefix_cache import PrefixCache
from .registry import ClientRegistry

TELL_INTERVAL_S = 0.05


class CacheWatchers:
    """See the module. Without a watcher nothing is noted, and nothing costs anything."""

    def __init__(self, clients: ClientRegistry) -> None:
        self._clients = clients
        self._watching: dict[ClientId, None] = {}
        self._changes: CacheChanges | None = None
        self._told_at = 0.0

    def watch(self, client: ClientId, cache: PrefixCache, now: float) -> None:
        """Tell a client all that is cached, and what changes from here on."""
        self._tell(now)  # what comes before is in the snapshot, and would not be known to be older
        if self._changes is None:
            self._changes = cache.changes = CacheChanges()
        self._watching[client] = None
        stored = [block_key(digest) for digest in cache.digests]
        self._clients.send(client, PrefixCacheChanges(stored=stored, is_snapshot=True), now)

    def forget(self, client: ClientId) -> None:
        """Tell a client nothing more: it left, or begins anew."""
        self._watching.pop(client, None)

    def tell_changes(self, now: float, *, is_busy: bool) -> None:
        """Tell what has changed, if it is time; while there is work, there will be another time."""
        if self._changes is not None and (not is_busy or now - self._told_at >= TELL_INTERVAL_S):
            self._tell(now)

    def _tell(self, now: float) -> None:
        changes = None if self._changes is None else self._changes.take()
        if changes is None:
            return
        self._told_at = now
        for client in self._watching:
            self._clients.send(client, changes, now)
