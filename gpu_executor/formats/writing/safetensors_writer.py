"""Writing safetensors files a tensor at a time: what they will hold is known before the first one is made.

Source: the safetensors format, https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec
import torch
from torch import Tensor

from ..safetensors import DTYPES
from .packing import TensorSpec

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_HEADER_ALIGNMENT = 8


class SafetensorsWriter:
    """The files of one checkpoint, and their index if there are several.

    Args:
        directory: where; it exists.
        specs: all tensors; they fill one file after the other in this order.
        max_file_bytes: of a file; a single larger tensor has one of its own.
    """

    def __init__(self, directory: Path, specs: Sequence[TensorSpec], max_file_bytes: int) -> None:
        self._directory = directory
        self._shards = list(_shards(specs, max_file_bytes))
        self._files: dict[str, BinaryIO] = {}
        self._places: dict[str, tuple[BinaryIO, int, TensorSpec]] = {}

    def __enter__(self) -> Self:
        for index, shard in enumerate(self._shards):
            path = self._directory / self._file_name(index)
            file = self._files[path.name] = path.open("wb")
            offset = _write_header(file, shard)
            for spec in _in_file_order(shard):
                self._places[spec.name] = (file, offset, spec)
                offset += spec.num_bytes
        if len(self._shards) > 1:
            self._write_index()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
        assert kind is not None or not self._places, f"never written: {', '.join(self._places)}"

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(spec.num_bytes for shard in self._shards for spec in shard)

    def write(self, name: str, tensor: Tensor) -> None:
        """Write one tensor; each once, in any order."""
        file, offset, spec = self._places.pop(name)
        assert (tensor.dtype, tuple(tensor.shape)) == (spec.dtype, spec.shape), f"{name} is not what was announced"
        file.seek(offset)
        file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)

    def _file_name(self, index: int) -> str:
        if len(self._shards) == 1:
            return "model.safetensors"
        return f"model-{index + 1:05d}-of-{len(self._shards):05d}.safetensors"

    def _write_index(self) -> None:
        weight_map = {spec.name: self._file_name(index) for index, shard in enumerate(self._shards) for spec in shard}
        content = {"metadata": {"total_size": self.num_bytes}, "weight_map": weight_map}
        encoded = msgspec.json.format(msgspec.json.encode(content), indent=2)
        (self._directory / "model.safetensors.index.json").write_bytes(encoded)


def _shards(specs: Sequence[TensorSpec], max_file_bytes: int) -> Iterator[list[TensorSpec]]:
    shard: list[TensorSpec] = []
    num_bytes = 0
    for spec in specs:
        if shard and num_bytes + spec.num_bytes > max_file_bytes:
            yield shard
            shard, num_bytes = [], 0
        shard.append(spec)
        num_bytes += spec.num_bytes
    yield shard


def _in_file_order(shard: Sequence[TensorSpec]) -> list[TensorSpec]:
    # Larger types first: so all lie at multiples of their size, which readers that map a file rely on.
    return sorted(shard, key=lambda spec: -spec.dtype.itemsize)


def _write_header(file: BinaryIO, shard: Sequence[TensorSpec]) -> int:
    """Write what a file will hold; return the position of the first tensor's first byte."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in _in_file_order(shard):
        header[spec.name] = {
            "dtype": _DTYPE_NAMES[spec.dtype],
            "shape": spec.shape,
            "data_offsets": (offset, offset + spec.num_bytes),
        }
        offset += spec.num_bytes
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % _HEADER_ALIGNMENT)
    file.write(struct.pack("<Q", len(encoded)) + encoded)
    return 8 + len(encoded)
