"""Numbers of a GGUF file's metadata, checked for sense, with errors that name the file and the key."""

from __future__ import annotations

import math

from pagewire.ipc.errors import ConfigError

from ..gguf_file import GGUFFile


def positive_int(file: GGUFFile, key: str, default: int | None = None) -> int:
    """Return a whole number of at least 1, `default` if it is absent or 0; without default it is required.

    Raises:
        ConfigError: if it is missing or below 1.
    """
    value = file.require_int(key) if default is None else file.get_int(key, default) or default
    if value < 1:
        raise ConfigError(f"{file.path}: {key} is {value}, must be at least 1")
    return value


def positive_float(file: GGUFFile, key: str, default: float | None = None) -> float:
    """Return a finite number above 0, `default` if it is absent or 0; without default it is required.

    Raises:
        ConfigError: if it is missing, not above 0 or not finite.
    """
    value = file.require_float(key) if default is None else file.get_float(key, default) or default
    if not 0 < value < math.inf:
        raise ConfigError(f"{file.path}: {key} is {value}, must be a number above 0")
    return value


def short_float(value: float) -> float:
    """Undo the rounding of a decimal fraction to fp32 (9.999999747378752e-06 was written as 1e-05)."""
    return float(f"{value:.7g}")
