"""A GGUF model as one object: one file, or the split files -00001-of-0000N opened together.

Metadata comes from the first shard; the tensor tables of all shards are one table.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TypeVar

from pagewire.ipc.errors import ConfigError

from .ggml_types import GGMLType
from .gguf_header import GGUFArray, GGUFHeader, GGUFTensor, MetadataValue, read_header

_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_LAYER_PREFIX = "blk."
_Scalar = TypeVar("_Scalar", str, int, float, bool)


class GGUFFile:
    """An open GGUF model, memory-mapped and read-only. A context manager.

    Attributes:
        path: the file it was opened by; of a split model, the first shard.
        metadata: every key-value pair; arrays are `GGUFArray`, decoded on demand.
        tensors: the tensor table by name, of all shards, in file order.
    """

    def __init__(self, path: Path) -> None:
        """Open `path`, and the other shards if its name says that it is one of several.

        Raises:
            ConfigError: if a shard is missing, or a file is no readable GGUF file.
        """
        headers: list[GGUFHeader] = []
        self._headers = headers
        try:
            for shard in shard_paths(path):
                headers.append(read_header(shard))
            self.path = headers[0].path
            self.metadata: dict[str, MetadataValue] = headers[0].metadata
            self.tensors: dict[str, GGUFTensor] = _merge_tables(headers)
        except BaseException:
            self.close()
            raise
        self._maps = {header.path: header.data for header in headers}

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the files. Views from `tensor_bytes` must be released before.

        Raises:
            BufferError: if such a view is still alive.
        """
        for header in self._headers:
            header.data.close()

    def tensor_bytes(self, name: str) -> memoryview:
        """Return a tensor's bytes as they lie in the file, without a copy.

        Raises:
            ConfigError: if there is no tensor of that name.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ConfigError(f"{self.path}: has no tensor {name!r}")
        return self.bytes_of(tensor)

    def bytes_of(self, tensor: GGUFTensor) -> memoryview:
        """Return the bytes of a row of the tensor table, or of a part of one, as they lie in the file."""
        return memoryview(self._maps[tensor.path])[tensor.offset : tensor.offset + tensor.num_bytes]

    def main_type(self) -> GGMLType | None:
        """Return the type that most weights of the layers' matrices have; None if there is no such matrix."""
        numbers: Counter[GGMLType] = Counter()
        for name, tensor in self.tensors.items():
            if name.startswith(_LAYER_PREFIX) and len(tensor.shape) > 1:
                numbers[tensor.ggml_type] += math.prod(tensor.shape)
        return max(numbers, key=lambda ggml_type: numbers[ggml_type], default=None)

    def get_str(self, key: str, default: str | None = None) -> str | None:
        """Return a string of the metadata, `default` if the key is absent.

        Raises:
            ConfigError: if it has another type (all `get_` and `require_` methods alike).
        """
        return self._get(key, str, default)

    def get_int(self, key: str, default: int | None = None) -> int | None:
        """Return a whole number of the metadata, `default` if the key is absent."""
        return self._get(key, int, default)

    def get_bool(self, key: str, default: bool | None = None) -> bool | None:
        """Return a truth value of the metadata, `default` if the key is absent."""
        return self._get(key, bool, default)

    def get_float(self, key: str, default: float | None = None) -> float | None:
        """Return a number of the metadata as a float, `default` if the key is absent."""
        value = self.metadata.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return self._get(key, float, default)

    def get_strings(self, key: str) -> list[str] | None:
        """Return an array of strings, None if the key is absent."""
        value = self._get_array(key)
        if value is None:
            return None
        return [element if isinstance(element, str) else self._refuse(key, "an array of strings") for element in value]

    def get_ints(self, key: str) -> list[int] | None:
        """Return an array of whole numbers, None if the key is absent."""
        value = self._get_array(key)
        if value is None:
            return None
        return [element if isinstance(element, int) else self._refuse(key, "an array of ints") for element in value]

    def get_floats(self, key: str) -> list[float] | None:
        """Return an array of numbers as floats, None if the key is absent."""
        value = self._get_array(key)
        if value is None:
            return None
        return [self._refuse(key, "an array of floats") if isinstance(element, str) else element for element in value]

    def require_str(self, key: str) -> str:
        """Return a string of the metadata that the model can't do without."""
        return self._present(key, self.get_str(key))

    def require_int(self, key: str) -> int:
        """Return a whole number of the metadata that the model can't do without."""
        return self._present(key, self.get_int(key))

    def require_float(self, key: str) -> float:
        """Return a number of the metadata that the model can't do without."""
        return self._present(key, self.get_float(key))

    def _present(self, key: str, value: _Scalar | None) -> _Scalar:
        if value is None:
            raise ConfigError(f"{self.path}: lacks the metadata key {key!r}")
        return value

    def _get(self, key: str, kind: type[_Scalar], default: _Scalar | None) -> _Scalar | None:
        value = self.metadata.get(key)
        if value is None:
            return default
        # bool is an int to Python, but not to GGUF.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self._refuse(key, kind.__name__)
        return value

    def _get_array(self, key: str) -> list[str] | list[int] | list[float] | list[bool] | None:
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, GGUFArray):
            self._refuse(key, "an array")
        return value.to_list()

    def _refuse(self, key: str, expected: str) -> NoReturn:
        value = self.metadata[key]
        kind = f"an array of {value.element_type.name}" if isinstance(value, GGUFArray) else type(value).__name__
        raise ConfigError(f"{self.path}: metadata key {key!r} is {kind}, not {expected}")


def shard_paths(path: Path) -> list[Path]:
    """Return all files of the model that `path` belongs to: itself, or every -0000i-of-0000N beside it.

    Raises:
        ConfigError: if shards are missing; the message names them.
    """
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    stem, count, suffix = match["stem"], int(match["count"]), path.suffix
    shards = [path.with_name(f"{stem}-{number:05d}-of-{count:05d}{suffix}") for number in range(1, count + 1)]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise ConfigError(f"{path.parent}: the split model {stem} lacks {', '.join(missing)}")
    return shards


def _merge_tables(headers: list[GGUFHeader]) -> dict[str, GGUFTensor]:
    first = headers[0]
    stated = first.metadata.get("split.count", 1)
    # A file renamed after splitting would silently miss most of its tensors.
    if isinstance(stated, int) and stated > 1 and stated != len(headers):
        raise ConfigError(
            f"{first.path}: is shard 1 of {stated}, but its name doesn't say so: name the files "
            f"NAME-00001-of-{stated:05d}.gguf and so on"
        )
    tensors: dict[str, GGUFTensor] = {}
    for header in headers:
        twice = tensors.keys() & header.tensors.keys()
        if twice:
            raise ConfigError(f"{header.path}: lists tensor {min(twice)!r}, which another shard lists too")
        tensors.update(header.tensors)
    return tensors
