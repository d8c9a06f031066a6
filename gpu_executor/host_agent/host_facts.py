"""What an agent tells the core of its host. No torch: the agent is there before any executor is."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from pagewire.ipc.errors import MachineError

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_RENDER_DEVICES = Path("/sys/class/drm")
_AMD = "0x1002"  # its PCI vendor id


def count_cpus() -> int:
    """Return the CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_gpus(nvidia: Path = _NVIDIA, render_devices: Path = _RENDER_DEVICES) -> int:
    """Return the GPUs that the system shows, NVIDIA's and AMD's.

    Args:
        nvidia: where NVIDIA's driver lists them.
        render_devices: where the kernel lists what has a renderer.
    """
    vendors = (path / "device" / "vendor" for path in render_devices.glob("renderD*"))
    num_amd = sum(path.is_file() and path.read_text(encoding="ascii").strip() == _AMD for path in vendors)
    return len(list(nvidia.glob("*"))) + num_amd


def find_free_port() -> int:
    """Return a port of this host that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def address_towards(core: str) -> str:
    """Return this host's address on the network by which it reaches the core; nothing is sent.

    Args:
        core: tcp://host:port.

    Raises:
        MachineError: there is no way there.
    """
    url = urlsplit(core)
    assert url.hostname is not None, f"{core!r} names no host"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(url.hostname, url.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as exc:
        raise MachineError(f"{url.hostname} can't be reached from this host: {exc.strerror or exc}.") from exc
