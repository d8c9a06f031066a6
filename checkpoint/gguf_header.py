"""The header of one GGUF file: metadata and tensor table, read from a memory map without torch.

A header is little-endian: magic, version, two counts, the key-value pairs, the tensor infos, then padding up to the
tensor data. Vocabularies are arrays of tens of thousands of strings; they are skipped over while walking (one addition
each) and decoded only when asked for, so that opening a file takes hundredths of a second.

The file comes from anywhere: every length is checked against what is left of the file before it is used, and every
fault is a `ConfigError` that names the file and the place.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import enum
import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pagewire.ipc.errors import ConfigError

from .byte_spans import find_overlap
from .ggml_types import GGMLType

_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4  # ggml's own limit
_MIN_PAIR_BYTES = 8 + 4 + 1  # key length, value type, the smallest value
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # name length, number of dimensions, one dimension, type, offset


class ValueType(enum.IntEnum):
    """The type of a metadata value, by GGUF's number."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_FORMATS = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
_UINT64 = struct.Struct("<Q")


class GGUFArray:
    """A metadata array that stays in the file until `to_list` is called.

    Attributes:
        element_type: the type of each element; never ARRAY.
    """

    def __init__(self, data: mmap.mmap, path: Path, key: str, element_type: ValueType, start: int, count: int) -> None:
        self.element_type = element_type
        self._data = data
        self._path = path
        self._key = key
        self._start = start
        self._count = count

    def __len__(self) -> int:
        return self._count

    def to_list(self) -> list[str] | list[int] | list[float] | list[bool]:
        """Decode the whole array.

        Raises:
            ConfigError: if a string is not valid UTF-8.
        """
        if self.element_type is ValueType.STRING:
            return list(self._strings())
        return list(struct.unpack_from(f"<{self._count}{_FORMATS[self.element_type]}", self._data, self._start))

    def find(self, text: str) -> int | None:
        """Return the index of the first element that is `text`, None if there is none; reads no further than that.

        Raises:
            ConfigError: if a string before it is not valid UTF-8.
        """
        if self.element_type is not ValueType.STRING:
            return None
        return next((index for index, element in enumerate(self._strings()) if element == text), None)

    def _strings(self) -> Iterator[str]:
        data, position, length_at = self._data, self._start, _UINT64.unpack_from
        for index in range(self._count):
            start = position + 8
            position = start + length_at(data, position)[0]
            try:
                yield data[start:position].decode()
            except UnicodeDecodeError as error:
                raise ConfigError(f"{self._path}: element {index} of {self._key} is not valid UTF-8: {error}") from None


MetadataValue = str | int | float | bool | GGUFArray


class GGUFTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the tensor table.

    Attributes:
        name: the tensor's name as the file states it, for example "blk.0.attn_q.weight".
        shape: outermost dimension first, as numpy and torch count ([rows, columns]; GGUF itself counts the other way).
        ggml_type: how values are stored; rows (the last dimension) are whole blocks of it.
        path: the file that holds it.
        offset: absolute position of the first byte in that file.
        num_bytes: its length.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLType
    path: Path
    offset: int
    num_bytes: int


class GGUFHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What `read_header` found in one file. `data` is the read-only map of the whole file that the rest points into."""

    path: Path
    version: int
    metadata: dict[str, MetadataValue]
    tensors: dict[str, GGUFTensor]
    data: mmap.mmap


def read_header(path: Path) -> GGUFHeader:
    """Map one GGUF file and read its header.

    Raises:
        ConfigError: if it can't be opened, is not a little-endian GGUF file of version 2 or 3, is truncated, or states
            something impossible. The message names the file and the place.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ConfigError(f"{path}: can't be opened: {error.strerror}") from error
    except ValueError as error:  # mmap refuses a file of no length
        raise ConfigError(f"{path}: is empty, not a GGUF file") from error
    try:
        return _HeaderReader(path, data).read()
    except BaseException:
        data.close()
        raise


class _HeaderReader:
    """A cursor over the map: each `_take` checks that what it reads lies inside the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._position = 0

    def read(self) -> GGUFHeader:
        version = self._read_version()
        num_tensors = self._take("Q", "the number of tensors")
        num_pairs = self._take("Q", "the number of metadata pairs")
        self._check_count(num_tensors, _MIN_TENSOR_BYTES, "tensors")
        self._check_count(num_pairs, _MIN_PAIR_BYTES, "metadata pairs")
        metadata = self._read_metadata(num_pairs)
        tensors = self._read_tensors(num_tensors, self._alignment(metadata))
        return GGUFHeader(path=self._path, version=version, metadata=metadata, tensors=tensors, data=self._data)

    def _read_version(self) -> int:
        if self._data[:4] != _MAGIC:
            raise self._fault(f"is not a GGUF file: it starts with {self._data[:4]!r}, not {_MAGIC!r}")
        self._position = 4
        version: int = self._take("I", "the version")
        if version & 0xFFFF == 0 and version:
            raise self._fault("is a big-endian GGUF file; convert it to little-endian")
        if version not in (2, 3):
            raise self._fault(f"has GGUF version {version}; versions 2 and 3 can be read: convert the model again")
        return version

    def _read_metadata(self, num_pairs: int) -> dict[str, MetadataValue]:
        metadata: dict[str, MetadataValue] = {}
        for index in range(num_pairs):
            key = self._take_string(f"the key of metadata pair {index}")
            if key in metadata:
                raise self._fault(f"states metadata key {key!r} twice")
            value_type = self._take_value_type(key)
            metadata[key] = self._take_value(key, value_type)
        return metadata

    def _take_value(self, key: str, value_type: ValueType) -> MetadataValue:
        if value_type is ValueType.STRING:
            return self._take_string(key)
        if value_type is ValueType.ARRAY:
            return self._take_array(key)
        value: int | float | bool = self._take(_FORMATS[value_type], key)
        return value

    def _take_array(self, key: str) -> GGUFArray:
        element_type = self._take_value_type(key)
        if element_type is ValueType.ARRAY:
            raise self._fault(f"metadata key {key!r} is an array of arrays, which no reader of models uses")
        count = self._take("Q", f"the length of {key}")
        element_bytes = 8 if element_type is ValueType.STRING else struct.calcsize(_FORMATS[element_type])
        self._check_count(count, element_bytes, f"elements of {key}")
        start = self._position
        if element_type is ValueType.STRING:
            self._skip_strings(key, count)
        else:
            self._position += count * element_bytes
        return GGUFArray(self._data, self._path, key, element_type, start, count)

    def _skip_strings(self, key: str, count: int) -> None:
        # The hot loop of opening a file: one unpack and one addition per token of the vocabulary.
        data, position, length_at = self._data, self._position, _UINT64.unpack_from
        try:
            for _ in range(count):
                position += 8 + length_at(data, position)[0]
        except (struct.error, OverflowError):
            position = self._size + 1
        if position > self._size:
            raise self._fault(f"is truncated: the strings of {key} run past its {self._size} bytes")
        self._position = position

    def _alignment(self, metadata: dict[str, MetadataValue]) -> int:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or isinstance(alignment, bool) or alignment <= 0 or alignment & alignment - 1:
            raise self._fault(f"general.alignment is {alignment!r}, not a power of two")
        return alignment

    def _read_tensors(self, num_tensors: int, alignment: int) -> dict[str, GGUFTensor]:
        infos = [self._take_tensor_info(index) for index in range(num_tensors)]
        data_start = -(-self._position // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, ggml_type, relative_offset in infos:
            if name in tensors:
                raise self._fault(f"lists tensor {name!r} twice")
            if relative_offset % alignment:
                raise self._fault(f"tensor {name!r} starts at {relative_offset}, not a multiple of {alignment}")
            if shape[-1] % ggml_type.block_values:
                raise self._fault(
                    f"tensor {name!r} has rows of {shape[-1]} values, not whole {ggml_type.name} blocks of "
                    f"{ggml_type.block_values}"
                )
            num_bytes = math.prod(shape) // ggml_type.block_values * ggml_type.block_bytes
            offset = data_start + relative_offset
            if offset + num_bytes > self._size:
                raise self._fault(
                    f"is truncated: tensor {name!r} ends at byte {offset + num_bytes}, the file at {self._size}; "
                    "fetch it again"
                )
            tensors[name] = GGUFTensor(
                name=name, shape=shape, ggml_type=ggml_type, path=self._path, offset=offset, num_bytes=num_bytes
            )
        spans = ((tensor.offset, tensor.offset + tensor.num_bytes, tensor.name) for tensor in tensors.values())
        overlap = find_overlap(spans)
        if overlap is not None:
            raise self._fault(f"is damaged: tensors {overlap[0]!r} and {overlap[1]!r} lie in the same bytes")
        return tensors

    def _take_tensor_info(self, index: int) -> tuple[str, tuple[int, ...], GGMLType, int]:
        name = self._take_string(f"the name of tensor {index}")
        num_dimensions = self._take("I", f"the number of dimensions of tensor {name!r}")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise self._fault(f"tensor {name!r} has {num_dimensions} dimensions; 1 to {_MAX_DIMENSIONS} can be")
        shape = tuple(self._take("Q", f"the shape of tensor {name!r}") for _ in range(num_dimensions))[::-1]
        if 0 in shape:
            raise self._fault(f"tensor {name!r} has the shape {list(shape)}: a dimension of 0")
        type_number = self._take("I", f"the type of tensor {name!r}")
        try:
            ggml_type = GGMLType(type_number)
        except ValueError:
            raise self._fault(f"tensor {name!r} has ggml type {type_number}, which this version doesn't know") from None
        return name, shape, ggml_type, self._take("Q", f"the offset of tensor {name!r}")

    def _take_value_type(self, key: str) -> ValueType:
        number = self._take("I", f"the type of {key}")
        try:
            return ValueType(number)
        except ValueError:
            raise self._fault(f"metadata key {key!r} has value type {number}, which GGUF doesn't define") from None

    def _take_string(self, what: str) -> str:
        length = self._take("Q", f"the length of {what}")
        start, end = self._position, self._position + length
        if end > self._size:
            raise self._fault(f"is truncated: {what} would be {length} bytes long")
        self._position = end
        try:
            return self._data[start:end].decode()
        except UnicodeDecodeError as error:
            raise self._fault(f"{what} is not valid UTF-8: {error}") from None

    def _take(self, value_format: str, what: str) -> int:
        reader = struct.Struct(f"<{value_format}")
        if self._position + reader.size > self._size:
            raise self._fault(f"is truncated: it ends within {what}")
        value: int = reader.unpack_from(self._data, self._position)[0]
        self._position += reader.size
        return value

    def _check_count(self, count: int, min_bytes: int, what: str) -> None:
        if count * min_bytes > self._size - self._position:
            raise self._fault(f"states {count} {what}, more than its {self._size} bytes can hold")

    def _fault(self, text: str) -> ConfigError:
        return ConfigError(f"{self._path}: {text} (header byte {self._position})")
