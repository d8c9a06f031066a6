"""What all ranks together say of the adapters that they were given: each reads the files on its own host."""

from __future__ import annotations

from collections.abc import Collection

from pagewire.ipc.errors import ErrorInfo, InvalidRequest
from pagewire.ipc.steps import ExecutorReady


def files_differ() -> ErrorInfo:
    """Return the error of an adapter of which ranks read different files."""
    return InvalidRequest(
        "The executors read different files of the adapter; its directory must be the same on all hosts.",
        param="lora_path",
    ).to_info()


def failed_adapters(ranks: Collection[ExecutorReady]) -> dict[int, ErrorInfo]:
    """Return the load ids of adapters that a rank can't read, or not as the others do, and why."""
    failed = {load_id: why for rank in ranks for load_id, why in rank.failed_adapters.items()}
    digests: dict[int, str] = {}
    for rank in ranks:
        for load_id, digest in rank.adapter_digests.items():
            if digests.setdefault(load_id, digest) != digest:
                failed.setdefault(load_id, files_differ())
    return failed
