"""Which file of a checkpoint directory holds which tensor, read from the safetensors headers without torch.

An index file is the allowlist per tensor: a tensor's value comes from the shard that the index names for it, and what
else the shards hold is ignored, as is any file that the index doesn't name. Without an index, `model.safetensors`
alone counts, or the only `*.safetensors` file there is.

Source: the safetensors format, https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import msgspec

from pagewire.ipc.errors import ConfigError

from .byte_spans import find_overlap
from .json_reader import read_json_object

_INDEX_NAME = "model.safetensors.index.json"
_SINGLE_NAME = "model.safetensors"
_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit

# Bits of one value; the names are the format's.
_DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class TensorLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where one tensor lies.

    Attributes:
        path: the file that holds it.
        dtype: the format's name, for example "BF16".
        shape: outermost dimension first; () for a scalar.
        begin: absolute position of its first byte in the file.
        end: one past its last byte.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_tensor_table(directory: Path) -> dict[str, TensorLocation]:
    """Return the location of every tensor of a checkpoint directory, in the index's order.

    Raises:
        ConfigError: if there are no weights, a shard is missing or truncated, or a shard lacks a tensor that the index
            assigns to it. The message names the files and tensors.
    """
    index_path = directory / _INDEX_NAME
    if index_path.is_file():
        return _read_indexed(directory, index_path)
    return read_tensor_file(_single_file(directory))


def _read_indexed(directory: Path, index_path: Path) -> dict[str, TensorLocation]:
    weight_map = _read_weight_map(index_path)
    shard_names = sorted(set(weight_map.values()))
    missing = [name for name in shard_names if not (directory / name).is_file()]
    if missing:
        tensors = sum(shard in missing for shard in weight_map.values())
        raise ConfigError(f"{directory}: lacks {', '.join(missing)}, which hold {tensors} tensors of {_INDEX_NAME}")
    shards = {name: read_tensor_file(directory / name) for name in shard_names}
    table: dict[str, TensorLocation] = {}
    for tensor, shard in weight_map.items():
        location = shards[shard].get(tensor)
        if location is None:
            raise ConfigError(f"{directory / shard}: lacks the tensor {tensor!r}, which {_INDEX_NAME} assigns to it")
        table[tensor] = location
    return table


def _read_weight_map(index_path: Path) -> dict[str, str]:
    weight_map = read_json_object(index_path).get_object("weight_map")
    if weight_map is None or not weight_map.data:
        raise ConfigError(f"{index_path}: has no weight_map")
    for tensor, shard in weight_map.data.items():
        # A shard lies beside the index: a name that leads elsewhere is no checkpoint's.
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise weight_map.fault(tensor, f"must name a file beside the index, is {shard!r}")
    return weight_map.data


def _single_file(directory: Path) -> Path:
    single = directory / _SINGLE_NAME
    if single.is_file():
        return single
    # consolidated*.safetensors are the same weights under another vendor's names.
    others = sorted(path for path in directory.glob("*.safetensors") if not path.name.startswith("consolidated"))
    if len(others) == 1:
        return others[0]
    if others:
        raise ConfigError(
            f"{directory}: holds {len(others)} safetensors files but no {_INDEX_NAME} that says which tensor lies where"
        )
    raise ConfigError(f"{directory}: holds no weights: neither {_INDEX_NAME} nor {_SINGLE_NAME}")


def read_tensor_file(path: Path) -> dict[str, TensorLocation]:
    """Return the location of every tensor of one file.

    Raises:
        ConfigError: it can't be read, or is no safetensors file.
    """
    header, data_start, file_bytes = _read_header(path)
    table: dict[str, TensorLocation] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        table[name] = _location(path, name, entry, data_start, file_bytes)
    overlap = find_overlap((location.begin, location.end, name) for name, location in table.items())
    if overlap is not None:
        raise ConfigError(
            f"{path}: is damaged: its header gives some bytes to two tensors, {overlap[0]!r} and {overlap[1]!r}; fetch "
            "it again"
        )
    return table


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:  # Any: JSON, checked entry by entry
    try:
        with path.open("rb") as file:
            file_bytes = path.stat().st_size
            prefix = file.read(_LENGTH.size)
            if len(prefix) < _LENGTH.size:
                raise ConfigError(f"{path}: is truncated at {file_bytes} bytes, before its header; fetch it again")
            header_bytes: int = _LENGTH.unpack(prefix)[0]
            if header_bytes > _MAX_HEADER_BYTES or _LENGTH.size + header_bytes > file_bytes:
                raise ConfigError(
                    f"{path}: states a header of {header_bytes} bytes in a file of {file_bytes}: it is truncated or no "
                    "safetensors file; fetch it again"
                )
            raw = file.read(header_bytes)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    try:
        header = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: its header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise ConfigError(f"{path}: its header is no JSON object")
    return header, _LENGTH.size + header_bytes, file_bytes


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _location(path: Path, name: str, entry: object, data_start: int, file_bytes: int) -> TensorLocation:
    try:
        info = msgspec.convert(entry, _Entry)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: the header entry of tensor {name!r} is malformed: {error}") from error
    begin, end = info.data_offsets
    bits = _DTYPE_BITS.get(info.dtype)
    if bits is None:
        raise ConfigError(f"{path}: tensor {name!r} has the unknown dtype {info.dtype!r}")
    if min(info.shape, default=0) < 0 or begin < 0 or (end - begin) * 8 != math.prod(info.shape) * bits:
        raise ConfigError(
            f"{path}: tensor {name!r} of shape {info.shape} and dtype {info.dtype} can't lie in bytes {begin} to {end}"
        )
    if data_start + end > file_bytes:
        raise ConfigError(
            f"{path}: is truncated: tensor {name!r} ends at byte {data_start + end}, the file at {file_bytes}; "
            "fetch it again"
        )
    return TensorLocation(
        path=path, dtype=info.dtype, shape=tuple(info.shape), begin=data_start + begin, end=data_start + end
    )
