"""What a tree of processes listens on, as the kernel has it (Linux)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_LISTEN = "0A"  # TCP_LISTEN
_ACCEPTS = 0x10000  # SO_ACCEPTCON


def tcp_ports(pids: Iterable[int]) -> set[int]:
    """The TCP ports that the processes listen on, of both families."""
    inodes = _socket_inodes(pids)
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def unix_paths(pids: Iterable[int]) -> set[str]:
    """The Unix sockets that the processes listen on; one without a file begins with @."""
    inodes = _socket_inodes(pids)
    paths = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if int(fields[3], 16) & _ACCEPTS and fields[6] in inodes:
            paths.add(fields[7])
    return paths


def _socket_inodes(pids: Iterable[int]) -> set[str]:
    links = [link for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir()]
    return {found[1] for link in links if (found := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())))}
