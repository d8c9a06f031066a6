"""What this host grants the process: CPUs and memory, as far as control groups and affinity leave them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# cgroup v1 spells "no limit" as the largest multiple of the page size below 2^63.
_NO_LIMIT = 2**60


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of the host or of the control group, whichever is smaller.

    Attributes:
        total_bytes: may never be exceeded.
        free_bytes: can be had now without pushing anyone out.
        source: what sets the total, for people: "RAM" or "cgroup limit".
    """

    total_bytes: int
    free_bytes: int
    source: str


class HostLimits:
    """Reads the limits.

    Args:
        proc: where procfs is mounted.
        cgroup: where the control group file systems are mounted.
    """

    def __init__(self, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroup = cgroup

    def memory(self) -> HostMemory:
        """Return total and free memory."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        free = total
        info = self._proc / "meminfo"
        if info.exists():  # Linux; elsewhere nothing says how much is free, and the share of the total has to do
            total, free = _kib_field(info, "MemTotal"), _kib_field(info, "MemAvailable")
        memory = HostMemory(total_bytes=total, free_bytes=free, source="RAM")
        for limit, used in self._cgroup_memory():
            memory = HostMemory(
                total_bytes=min(memory.total_bytes, limit),
                free_bytes=min(memory.free_bytes, max(0, limit - used)),
                source="cgroup limit" if limit < memory.total_bytes else memory.source,
            )
        return memory

    def num_cpus(self) -> int:
        """Return the CPUs that this process may keep busy, at least 1: affinity and control group quota."""
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        for quota, period in self._cgroup_cpu():
            if quota > 0 and period > 0:
                count = min(count, -(-quota // period))
        return max(1, count)

    def resident_bytes(self) -> int:
        """Return the memory that this process holds now, 0 where the system does not tell."""
        status = self._proc / "self" / "status"
        return _kib_field(status, "VmRSS") if status.exists() else 0

    def _cgroup_memory(self) -> Iterator[tuple[int, int]]:
        """Yield (limit, used) of every group that this process is in; what the kernel can drop counts as unused."""
        for group in self._groups("memory"):
            for limit_file, usage_file, reclaimable in (
                ("memory.max", "memory.current", "inactive_file"),
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            ):
                limit = _read_int(group / limit_file)
                if limit is None or limit >= _NO_LIMIT:
                    continue
                used = _read_int(group / usage_file) or 0
                yield limit, used - min(used, _stat_field(group / "memory.stat", reclaimable))

    def _cgroup_cpu(self) -> Iterator[tuple[int, int]]:
        """Yield (quota, period) in microseconds of every group that this process is in and that has a quota."""
        for group in self._groups("cpu"):
            words = _read_text(group / "cpu.max").split()
            if len(words) == 2 and words[0].isdigit():
                yield int(words[0]), int(words[1])
            quota, period = _read_int(group / "cpu.cfs_quota_us"), _read_int(group / "cpu.cfs_period_us")
            if quota is not None and period is not None:
                yield quota, period

    def _groups(self, controller: str) -> Iterator[Path]:
        """Yield the directories of this process's groups from the leaf up: limits of all of them hold."""
        for line in _read_text(self._proc / "self" / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            mount = self._cgroup / controller if controllers else self._cgroup
            leaf = mount / path.lstrip("/")
            # In a container the path is often the host's and does not exist under the mount, whose top is then ours.
            yield from (directory for directory in (leaf, *leaf.parents) if directory.is_relative_to(mount))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:  # not there, or not for us to read: this group sets no limit that we could know
        return ""


def _read_int(path: Path) -> int | None:
    text = _read_text(path).strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _stat_field(path: Path, name: str) -> int:
    match = re.search(rf"^{name} (\d+)$", _read_text(path), re.MULTILINE)
    return int(match[1]) if match else 0


def _kib_field(path: Path, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB$", _read_text(path), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0
