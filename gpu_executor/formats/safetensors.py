"""Reading the tensors of a Hugging Face checkpoint directory."""

from __future__ import annotations

import copy
import math
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagewire.checkpoint.safetensors_index import TensorLocation, read_tensor_file, read_tensor_table
from pagewire.ipc.errors import ConfigError

from ..kernels.layouts import GROUP_SIZE, DenseWeight, LinearWeight
from .tensor_part import WHOLE_TENSOR, TensorPart

DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
}
# What a plain tensor may be stored as; the others are parts of quantized layers.
PLAIN = ("F32", "F16", "BF16")
# Values converted at a time: the packed bytes are copied once on their way.
_CHUNK_VALUES = 1 << 20


@contextmanager
def open_safetensors(directory: Path) -> Iterator[list[SafetensorsTensor]]:
    """Map the checkpoint's files and give every tensor, in the order of its index; they close with the context.

    Raises:
        ConfigError: if a file is missing, truncated or malformed.
    """
    with _open(read_tensor_table(directory)) as tensors:
        yield tensors


@contextmanager
def open_safetensors_file(path: Path) -> Iterator[list[SafetensorsTensor]]:
    """The same of one file, whatever its name.

    Raises:
        ConfigError: as `open_safetensors`.
    """
    with _open(read_tensor_file(path)) as tensors:
        yield tensors


@contextmanager
def _open(table: Mapping[str, TensorLocation]) -> Iterator[list[SafetensorsTensor]]:
    maps: dict[Path, mmap.mmap] = {}
    tensors: list[SafetensorsTensor] = []
    try:
        for name, location in table.items():
            if location.path not in maps:
                maps[location.path] = _map(location.path)
            tensors.append(SafetensorsTensor(name, location, maps[location.path]))
        yield tensors
    finally:
        for mapped in maps.values():
            mapped.close()


class SafetensorsTensor:
    """One tensor of a safetensors file.

    Args:
        name: its name, which is the canonical one.
        location: where it lies.
        mapped: the whole file.

    Attributes:
        stored_as: the file's name of its type ("BF16").
    """

    def __init__(self, name: str, location: TensorLocation, mapped: mmap.mmap) -> None:
        self.name = name
        self.source = f"{location.path}, tensor {name!r}"
        self.shape = location.shape
        self.stored_as = location.dtype
        self._location = location
        self._mapped = mapped
        self._part = WHOLE_TENSOR

    def presented_as(self, name: str, shape: tuple[int, ...]) -> SafetensorsTensor:
        """Return the same tensor under another canonical name; error texts still say what the file calls it.

        Args:
            name: the canonical name.
            shape: of as many values as it has.
        """
        presented = copy.copy(self)
        presented.name, presented.shape = name, shape
        return presented

    def sliced(self, part: TensorPart) -> SafetensorsTensor:
        """Return a part, of a whole tensor; see `CheckpointTensor.sliced`."""
        assert self._part.is_whole, "a part is not cut again"
        piece = copy.copy(self)
        piece.shape, piece._part = part.shape_of(self.shape), part
        return piece

    def copy_to(self, destination: Tensor) -> None:
        """Convert into `destination`; see `CheckpointTensor.copy_to`."""
        dtype, flat, start = self._plain_dtype, destination.view(-1), 0
        for chunk in self._chunks(dtype.itemsize):
            # A copy: the map is read-only, which torch does not know, and a tensor there need not be aligned.
            values = torch.from_numpy(chunk.copy()).view(-1).view(dtype)
            flat[start : start + len(values)] = values
            start += len(values)

    def read(self) -> Tensor:
        """Return the tensor as it is stored, in memory of its own.

        Raises:
            ConfigError: if it is stored in a type that is no part of any supported format.
        """
        dtype = DTYPES.get(self.stored_as)
        if dtype is None:
            raise ConfigError(f"{self.source}: is stored as {self.stored_as}; readable are {', '.join(DTYPES)}")
        values, start = torch.empty(self.shape, dtype=dtype), 0
        raw = values.view(-1).view(torch.uint8).numpy()
        for chunk in self._chunks(dtype.itemsize):
            raw[start : start + chunk.size].reshape(chunk.shape)[:] = chunk
            start += chunk.size
        return values

    def _chunks(self, itemsize: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of all values in their order: views of the file, of about `_CHUNK_VALUES` values each.

        Args:
            itemsize: bytes of a value.
        """
        shape = self._location.shape or (1,)
        row_bytes = math.prod(shape[1:]) * itemsize
        stored = np.frombuffer(self._mapped, dtype=np.uint8, count=shape[0] * row_bytes, offset=self._location.begin)
        for run in self._part.row_runs(shape[0]):
            if self._part.columns is None:  # neighbours: read as one row
                yield from _split(stored[run.start * row_bytes : run.stop * row_bytes], _CHUNK_VALUES * itemsize)
                continue
            column_bytes = math.prod(shape[2:]) * itemsize
            first, last = self._part.columns.start * column_bytes, self._part.columns.stop * column_bytes
            rows = stored.reshape(shape[0], row_bytes)[run.start : run.stop, first:last]
            yield from _split(rows, max(1, _CHUNK_VALUES * itemsize // max(1, last - first)))

    def read_matrix(self, dtype: torch.dtype | None) -> LinearWeight:
        """Read as a dense matrix; see `CheckpointTensor.read_matrix`."""
        weight = torch.empty(self.shape, dtype=dtype or self._plain_dtype)
        self.copy_to(weight)
        return DenseWeight(weight)

    def matrix_bytes(self, dtype: torch.dtype | None, max_scale_group: int = GROUP_SIZE) -> int:
        """Return what a matrix takes; see `CheckpointTensor.matrix_bytes`."""
        return (dtype or self._plain_dtype).itemsize * math.prod(self.shape)

    @property
    def _plain_dtype(self) -> torch.dtype:
        if self.stored_as not in PLAIN:
            raise ConfigError(
                f"{self.source}: is stored as {self.stored_as}, which a plain tensor can't be; those may be "
                f"{', '.join(PLAIN)}"
            )
        return DTYPES[self.stored_as]


def _split(values: NDArray[np.uint8], step: int) -> Iterator[NDArray[np.uint8]]:
    for start in range(0, len(values), step):
        yield values[start : start + step]


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ConfigError(f"{path}: can't be opened: {error.strerror}") from error
