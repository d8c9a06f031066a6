"""The JSON file of a benchmark without a server."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pagewire.ipc.errors import ConfigError, MachineError


def check_result_file(path: str | None) -> None:
    """Refuse before the run what can't be written after it.

    Raises:
        ConfigError: the folder does not exist.
    """
    if path is not None and not Path(path).parent.is_dir():
        raise ConfigError(f"--output-json {path}: {Path(path).parent} is no folder.")


def save_result(path: str | None, document: object) -> None:
    """Write the figures, if a file was asked for.

    Raises:
        MachineError: the file can't be written.
    """
    if path is None:
        return
    try:
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    except OSError as exc:
        raise MachineError(f"{path} can't be written: {exc.strerror}.") from exc
