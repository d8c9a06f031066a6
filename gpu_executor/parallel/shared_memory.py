"""Memory that the executor processes of one host share. It has no name, so that nothing is left of it when they end."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

from .process_groups import Store

_PRESENT, _ABSENT = b"1", b"0"


def share_memory(store: Store, name: str, rank: int, size: int, num_bytes: int) -> mmap.mmap | None:
    """Map the same zeros in all ranks; called by all of them.

    Rank 0 makes a file without a name, and the others open it by its descriptor under /proc. Whether that is the same
    file is looked at first: ranks in containers of their own may know one another's processes by other numbers.

    Args:
        store: where the ranks find each other.
        name: of the memory; nothing else in the store begins with it.
        rank: of this process.
        size: how many ranks there are.
        num_bytes: of the memory, what nobody touches takes none; 0: this rank has no use for it.

    Returns:
        The memory, or None: the system has no such files, or some rank can't open this one or has no use for it. All
        ranks get the same.

    Raises:
        RuntimeError: a rank does not answer, as the store says it.
    """
    if rank == 0:
        descriptor = _create(num_bytes) if num_bytes else None
        store.set(f"{name}/file", "" if descriptor is None else _describe(descriptor))
    else:
        descriptor = _open(store.get(f"{name}/file").decode())
    try:
        memory = mmap.mmap(descriptor, num_bytes) if descriptor is not None and num_bytes else None
        store.set(f"{name}/mapped/{rank}", _ABSENT if memory is None else _PRESENT)
        # Rank 0's descriptor, by which the others find the file, is closed after that.
        found = [store.get(f"{name}/mapped/{other}") for other in range(size)]
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return memory if all(each == _PRESENT for each in found) else None


def _create(num_bytes: int) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        descriptor = os.memfd_create("pagewire-ranks", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, num_bytes)
    except OSError:
        return None
    return descriptor


def _describe(descriptor: int) -> str:
    """Return where other processes find a file, and what it is."""
    status = os.fstat(descriptor)
    return f"/proc/{os.getpid()}/fd/{descriptor} {status.st_dev} {status.st_ino}"


def _open(description: str) -> int | None:
    if not description:
        return None
    path, device, inode = description.split()
    try:
        status = Path(path).stat()  # opens nothing: what lies there may be no file of ours
        if (status.st_dev, status.st_ino) != (int(device), int(inode)):
            return None
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
