"""What tells an adapter's weights from others of the same name and path: a digest of its files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from .adapter_config import CONFIG_NAME
from .tensor_names import FILE_NAME

_DIGEST_BYTES = 16


def digest_adapter(directory: Path) -> str:
    """Return a hexadecimal digest of the files that an adapter is read from.

    Raises:
        OSError: one can't be read.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name in (CONFIG_NAME, FILE_NAME):
        with (directory / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def stamp_adapter(directory: Path) -> tuple[tuple[int, ...], ...]:
    """Return what changes when somebody writes to the files or puts others in their place.

    Raises:
        OSError: one is not there.
    """
    stats = [(directory / name).stat() for name in (CONFIG_NAME, FILE_NAME)]
    return tuple((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)
