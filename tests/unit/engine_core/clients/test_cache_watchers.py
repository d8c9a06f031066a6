"""Watchers of the prefix cache are told all of it once, and then what changes, now and then; others nothing."""

from __future__ import annotations

from typing import cast

from pagewire.engine_core.clients.cache_watchers import TELL_INTERVAL_S, CacheWatchers
from pagewire.engine_core.clients.registry import ClientRegistry
from pagewire.engine_core.kv.free_queue import Block
from pagewire.engine_core.kv.prefix_cache import PrefixCache
from pagewire.ipc.block_hash import BlockDigest, block_digest, block_key
from pagewire.ipc.channels import ClientId
from pagewire.ipc.outputs import PrefixCacheChanges
from pagewire.ipc.requests import Message

ALICE, BOB = ClientId(b"alice"), ClientId(b"bob")
DIGESTS = [block_digest(BlockDigest(b""), [index]) for index in range(4)]
KEYS = [block_key(digest) for digest in DIGESTS]


class RecordingRegistry:
    """Takes what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[ClientId, Message]] = []

    def send(self, client: ClientId, message: Message, now: float) -> None:
        self.sent.append((client, message))


def build() -> tuple[RecordingRegistry, CacheWatchers, PrefixCache]:
    registry = RecordingRegistry()
    cache = PrefixCache()
    cache.insert(DIGESTS[0], Block(0))
    return registry, CacheWatchers(cast("ClientRegistry", registry)), cache


def test_nothing_is_noted_while_nobody_watches():
    registry, watchers, cache = build()
    watchers.tell_changes(1.0, is_busy=False)
    assert cache.changes is None
    assert registry.sent == []


def test_watcher_is_told_everything_and_then_the_changes():
    registry, watchers, cache = build()
    watchers.watch(ALICE, cache, 0.0)
    cache.insert(DIGESTS[1], Block(1))
    watchers.tell_changes(1.0, is_busy=True)
    assert registry.sent == [
        (ALICE, PrefixCacheChanges(stored=[KEYS[0]], is_snapshot=True)),
        (ALICE, PrefixCacheChanges(stored=[KEYS[1]])),
    ]


def test_busy_core_tells_changes_together_and_one_that_turns_idle_the_rest():
    registry, watchers, cache = build()
    watchers.watch(ALICE, cache, 0.0)
    registry.sent.clear()
    for index, now in ((1, 1.0), (2, 1.0 + TELL_INTERVAL_S / 2)):
        cache.insert(DIGESTS[index], Block(index))
        watchers.tell_changes(now, is_busy=True)
    assert len(registry.sent) == 1
    watchers.tell_changes(1.0 + TELL_INTERVAL_S / 2, is_busy=False)
    assert registry.sent[1:] == [(ALICE, PrefixCacheChanges(stored=[KEYS[2]]))]


def test_later_watcher_gets_nothing_that_its_snapshot_holds():
    registry, watchers, cache = build()
    watchers.watch(ALICE, cache, 0.0)
    cache.insert(DIGESTS[1], Block(1))
    watchers.watch(BOB, cache, 0.0)
    watchers.tell_changes(1.0, is_busy=False)
    assert [message for client, message in registry.sent if client == BOB] == [
        PrefixCacheChanges(stored=KEYS[:2], is_snapshot=True)
    ]
    assert [message for client, message in registry.sent if client == ALICE][1:] == [
        PrefixCacheChanges(stored=[KEYS[1]])
    ]


def test_client_that_left_is_told_nothing_more():
    registry, watchers, cache = build()
    watchers.watch(ALICE, cache, 0.0)
    watchers.forget(ALICE)
    cache.clear()
    watchers.tell_changes(1.0, is_busy=False)
    assert len(registry.sent) == 1
