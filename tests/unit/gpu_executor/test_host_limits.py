"""Limits are the tightest of machine and control groups, whatever the cgroup version."""

from __future__ import annotations

import os

import pytest

from pagewire.gpu_executor.host_limits import HostLimits, HostMemory

GIB = 2**30


@pytest.fixture
def host(tmp_path):
    """A machine of 16 GiB with 10 free, in no limited group."""
    write(tmp_path / "proc/meminfo", f"MemTotal: {16 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {10 * 2**20} kB\n")
    write(tmp_path / "proc/self/status", "Name:\tpython\nVmRSS:\t    2048 kB\n")
    write(tmp_path / "proc/self/cgroup", "0::/pod/box\n")
    (tmp_path / "cgroup").mkdir()
    return HostLimits(proc=tmp_path / "proc", cgroup=tmp_path / "cgroup")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_machine_without_limits_offers_its_ram(host):
    assert host.memory() == HostMemory(total_bytes=16 * GIB, free_bytes=10 * GIB, source="RAM")
    assert host.resident_bytes() == 2 * 2**20
    assert host.num_cpus() == len(os.sched_getaffinity(0))


def test_cgroup_v2_limit_counts_what_the_kernel_can_drop_as_free(host, tmp_path):
    write(tmp_path / "cgroup/pod/box/memory.max", f"{4 * GIB}\n")
    write(tmp_path / "cgroup/pod/box/memory.current", f"{3 * GIB}\n")
    write(tmp_path / "cgroup/pod/box/memory.stat", f"anon 5\ninactive_file {GIB}\nactive_file 7\n")
    assert host.memory() == HostMemory(total_bytes=4 * GIB, free_bytes=2 * GIB, source="cgroup limit")


def test_limit_of_an_outer_group_holds_too(host, tmp_path):
    write(tmp_path / "cgroup/pod/box/memory.max", "max\n")
    write(tmp_path / "cgroup/pod/memory.max", f"{2 * GIB}\n")
    write(tmp_path / "cgroup/pod/memory.current", f"{GIB}\n")
    assert host.memory() == HostMemory(total_bytes=2 * GIB, free_bytes=GIB, source="cgroup limit")


def test_cgroup_v1_limit_is_found(host, tmp_path):
    write(tmp_path / "proc/self/cgroup", "9:name=systemd:/\n4:memory:/box\n2:cpu,cpuacct:/box\n")
    write(tmp_path / "cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(tmp_path / "cgroup/memory/box/memory.limit_in_bytes", f"{8 * GIB}\n")
    write(tmp_path / "cgroup/memory/box/memory.usage_in_bytes", f"{GIB}\n")
    assert host.memory() == HostMemory(total_bytes=8 * GIB, free_bytes=7 * GIB, source="cgroup limit")


def test_container_whose_path_is_the_hosts_uses_the_top_of_the_mount(host, tmp_path):
    write(tmp_path / "proc/self/cgroup", "0::/kubepods/pod1/ctr\n")
    write(tmp_path / "cgroup/memory.max", f"{3 * GIB}\n")
    write(tmp_path / "cgroup/memory.current", "0\n")
    assert host.memory().total_bytes == 3 * GIB


def test_limit_above_the_machine_changes_nothing(host, tmp_path):
    write(tmp_path / "cgroup/pod/box/memory.max", f"{64 * GIB}\n")
    write(tmp_path / "cgroup/pod/box/memory.current", "0\n")
    assert host.memory() == HostMemory(total_bytes=16 * GIB, free_bytes=10 * GIB, source="RAM")


@pytest.mark.parametrize(("quota", "expected"), [("50000 100000", 1), ("100000 100000", 1), ("max 100000", None)])
def test_cpu_quota_bounds_the_threads(host, tmp_path, quota, expected):
    write(tmp_path / "cgroup/pod/box/cpu.max", quota)
    assert host.num_cpus() == (expected or len(os.sched_getaffinity(0)))
