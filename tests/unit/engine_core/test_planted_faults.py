"""The oracle is worth its name: typical faults of such engines, planted one by one, are found by it."""

from __future__ import annotations

import msgspec
import pytest

from pagewire.engine_core.kv.cache_manager import CacheManager
from pagewire.engine_core.kv.prefix_cache import PrefixCache
from pagewire.engine_core.scheduler import Scheduler
from pagewire.engine_core.steps.builder import StepBuilder
from tests.support.builders import build_driver, build_request
from tests.support.fake_executor import OracleViolation


def run_fork():
    driver = build_driver()
    driver.checks_invariants = False
    driver.add(build_request(1, range(6), n=3, max_tokens=8))
    driver.run()


def run_small_pool():
    driver = build_driver(num_blocks=8, max_model_len=28, caching=False)
    driver.checks_invariants = False
    driver.add(*(build_request(i, [i] * 9, max_tokens=12) for i in range(3)))
    driver.run()
    assert driver.engine.stats.num_preemptions > 0


def run_reused_blocks():
    driver = build_driver(num_blocks=8, max_model_len=28)
    driver.checks_invariants = False
    for request_id, prompt in enumerate(([1] * 20, [2] * 24, [1] * 20)):
        driver.add(build_request(request_id, prompt, max_tokens=2))
        driver.run()


@pytest.mark.parametrize("run", [run_fork, run_small_pool, run_reused_blocks])
def test_without_a_fault_the_oracle_is_content(run):
    run()


def test_a_skipped_block_copy_is_found(monkeypatch):
    build = StepBuilder.build
    monkeypatch.setattr(StepBuilder, "build", lambda *args: msgspec.structs.replace(build(*args), block_copies=[]))
    with pytest.raises(OracleViolation, match="another prefix"):
        run_fork()


def test_a_write_to_a_shared_block_is_found(monkeypatch):
    try_extend = CacheManager.try_extend

    def extend_without_copy(self, child, num_new_tokens):
        shared = [self.pool.blocks[block_id] for block_id in child.block_ids]
        ref_counts = [block.ref_count for block in shared]
        for block in shared:
            block.ref_count = 1
        extension = try_extend(self, child, num_new_tokens)
        for block, ref_count in zip(shared, ref_counts, strict=True):
            block.ref_count = ref_count
        return extension

    monkeypatch.setattr(CacheManager, "try_extend", extend_without_copy)
    with pytest.raises(OracleViolation, match="two rows write"):
        run_fork()


def test_a_stale_prefix_cache_entry_is_found(monkeypatch):
    monkeypatch.setattr(PrefixCache, "evict", lambda self, block: setattr(block, "digest", None))
    with pytest.raises(OracleViolation, match="another prefix"):
        run_reused_blocks()


def test_a_preemption_that_keeps_num_computed_tokens_is_found(monkeypatch):
    free, try_admit = CacheManager.free, CacheManager.try_admit

    def free_without_reset(self, child):
        num_computed_tokens = child.num_computed_tokens
        free(self, child)
        child.num_computed_tokens = num_computed_tokens

    def admit_where_it_was(self, child, **kwargs):
        num_computed_tokens, child.num_computed_tokens = child.num_computed_tokens, 0
        is_admitted = try_admit(self, child, **kwargs)
        child.num_computed_tokens = max(num_computed_tokens, child.num_computed_tokens)
        return is_admitted

    monkeypatch.setattr(CacheManager, "free", free_without_reset)
    monkeypatch.setattr(CacheManager, "try_admit", admit_where_it_was)
    with pytest.raises(OracleViolation, match="another prefix"):
        run_small_pool()


def test_a_preemption_that_keeps_the_executors_row_is_found(monkeypatch):
    preempt = Scheduler.preempt

    def preempt_without_row(self, child):
        row_id = child.row_id
        preempt(self, child)
        self.retired_row_ids.remove(row_id)
        child.row_id = row_id

    monkeypatch.setattr(Scheduler, "preempt", preempt_without_row)
    with pytest.raises(OracleViolation, match="goes on at"):
        run_small_pool()


def test_a_block_that_is_freed_twice_is_found(monkeypatch):
    monkeypatch.setattr(
        CacheManager, "fork", lambda self, parent, child: setattr(child, "block_ids", list(parent.block_ids))
    )
    with pytest.raises(AssertionError):
        run_fork()
