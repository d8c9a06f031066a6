"""Typed reading of a checkpoint's JSON files, where every error names the file and the key.

JSON null counts as absent, as Hugging Face configurations use it; `has` tells the two apart where it matters.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from pagewire.ipc.errors import ConfigError


def read_json_object(path: Path) -> JSONReader:
    """Read a file that holds one JSON object.

    Raises:
        ConfigError: if it can't be read or is something else.
    """
    try:
        data = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds no JSON object but a {type(data).__name__}")
    return JSONReader(path, data)


class JSONReader:
    """One JSON object of a file, and where in the file it lies (`prefix`, for messages)."""

    def __init__(self, path: Path, data: dict[str, Any], prefix: str = "") -> None:  # Any: JSON as it comes
        self.path = path
        self.data = data
        self._prefix = prefix

    def has(self, key: str) -> bool:
        """Tell whether the key is there at all, be it with null."""
        return key in self.data

    def get_int(self, key: str, default: int | None = None, *, minimum: int = 1) -> int | None:
        """Return a whole number of at least `minimum`, `default` if absent.

        Raises:
            ConfigError: if the value has another type or range (all methods alike).
        """
        value = self.data.get(key)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.fault(key, f"must be a whole number of at least {minimum}, is {value!r}")
        return value

    def require_int(self, key: str, *, minimum: int = 1) -> int:
        """Return a whole number that the model can't do without."""
        value = self.get_int(key, minimum=minimum)
        if value is None:
            raise self.missing(key)
        return value

    def get_float(self, key: str, default: float | None = None) -> float | None:
        """Return a finite number, `default` if absent."""
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self.fault(key, f"must be a number, is {value!r}")
        return float(value)

    def get_positive_float(self, key: str, default: float | None = None) -> float | None:
        """Return a finite number above zero, `default` if absent."""
        value = self.get_float(key, default)
        if value is not None and value <= 0:
            raise self.fault(key, f"must be above 0, is {value!r}")
        return value

    def require_positive_float(self, key: str) -> float:
        """Return a number above zero that the model can't do without."""
        value = self.get_positive_float(key)
        if value is None:
            raise self.missing(key)
        return value

    def get_positive_floats(self, key: str) -> tuple[float, ...] | None:
        """Return a list of finite numbers above zero, None if absent."""
        values = self.data.get(key)
        if values is None:
            return None
        if not isinstance(values, list):
            raise self.fault(key, f"must be a list of numbers, is {values!r}")
        for value in values:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < value < math.inf:
                raise self.fault(key, f"must be a list of numbers above 0, has {value!r}")
        return tuple(float(value) for value in values)

    def get_bool(self, key: str, default: bool) -> bool:
        """Return a truth value, `default` if absent."""
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(key, f"must be true or false, is {value!r}")
        return value

    def get_str(self, key: str, default: str | None = None) -> str | None:
        """Return a string, `default` if absent."""
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.fault(key, f"must be a string, is {value!r}")
        return value

    def get_str_list(self, key: str) -> list[str] | None:
        """Return a list of strings, None if absent."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fault(key, f"must be a list of strings, is {value!r}")
        return value

    def get_token_ids(self, key: str) -> tuple[int, ...]:
        """Return one token id or a list of them; empty if absent."""
        value = self.data.get(key)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
            raise self.fault(key, f"must be a token id or a list of them, is {value!r}")
        return tuple(ids)

    def get_indices(self, key: str, count: int) -> tuple[int, ...]:
        """Return a list of indices below `count`; empty if absent."""
        values = self.data.get(key)
        if values is None:
            return ()
        if not isinstance(values, list):
            raise self.fault(key, f"must be a list of indices, is {values!r}")
        for value in values:
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
                raise self.fault(key, f"must be a list of indices from 0 to {count - 1}, has {value!r}")
        return tuple(values)

    def get_object(self, key: str) -> JSONReader | None:
        """Return a nested object, None if absent."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fault(key, f"must be an object, is {value!r}")
        return JSONReader(self.path, value, f"{self._prefix}{key}.")

    def missing(self, key: str) -> ConfigError:
        """Return the error for a key that is needed but absent."""
        return ConfigError(f"{self.path}: lacks the key {self._prefix}{key}")

    def fault(self, key: str, text: str) -> ConfigError:
        """Return an error about a key's value."""
        return ConfigError(f"{self.path}: {self._prefix}{key} {text}")
