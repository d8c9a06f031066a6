from __future__ import annotations

from pagewire.engine_core.adapters.ranks import failed_adapters
from pagewire.ipc.errors import ErrorInfo
from pagewire.ipc.steps import ExecutorReady

FAULT = ErrorInfo(kind="InvalidRequest", message="no such file")


def ready(digests: dict[int, str], failed: dict[int, ErrorInfo] | None = None) -> ExecutorReady:
    return ExecutorReady(
        executor_epoch=1, num_blocks=1, device="cpu", dtype="float32", kv_cache_dtype="float32",
        failed_adapters=failed or {}, adapter_digests=digests,
    )  # fmt: skip


def test_what_all_ranks_read_alike_is_there() -> None:
    assert failed_adapters([ready({1: "a", 2: "b"}), ready({1: "a", 2: "b"})]) == {}


def test_what_a_rank_can_not_read_or_reads_otherwise_is_not() -> None:
    failed = failed_adapters([ready({1: "a", 3: "c"}), ready({1: "other", 3: "c"}, {2: FAULT})])
    assert failed.keys() == {1, 2}
    assert failed[2] == FAULT
    assert "different files" in failed[1].message
