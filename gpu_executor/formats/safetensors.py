"""Reading the tensors of a Hugging Face checkpoint directory."""

from __future__ import annotations

import copy
import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pagewire.checkpoint.safetensors_index import TensorLocation, read_tensor_table
from pagewire.ipc.errors import ConfigError

from ..kernels.layouts import GROUP_SIZE, DenseWeight, LinearWeight

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
    maps: dict[Path, mmap.mmap] = {}
    tensors: list[SafetensorsTensor] = []
    try:
        for name, location in read_tensor_table(directory).items():
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

    def presented_as(self, name: str, shape: tuple[int, ...]) -> SafetensorsTensor:
        """Return the same tensor under another canonical name; error texts still say what the file calls it.

        Args:
            name: the canonical name.
            shape: of as many values as it has.
        """
        presented = copy.copy(self)
        presented.name, presented.shape = name, shape
        return presented

    def copy_to(self, destination: Tensor) -> None:
        """Convert into `destination`; see `CheckpointTensor.copy_to`."""
        location, dtype = self._location, self._plain_dtype
        flat = destination.view(-1)
        for start in range(0, flat.numel(), _CHUNK_VALUES):
            count = min(_CHUNK_VALUES, flat.numel() - start)
            # A copy: the map is read-only, which torch does not know, and a tensor there need not be aligned.
            raw = np.frombuffer(
                self._mapped,
                dtype=np.uint8,
                count=count * dtype.itemsize,
                offset=location.begin + start * dtype.itemsize,
            ).copy()
            flat[start : start + count] = torch.from_numpy(raw).view(dtype)

    def read(self) -> Tensor:
        """Return the tensor as it is stored, in memory of its own.

        Raises:
            ConfigError: if it is stored in a type that is no part of any supported format.
        """
        dtype = DTYPES.get(self.stored_as)
        if dtype is None:
            raise ConfigError(f"{self.source}: is stored as {self.stored_as}; readable are {', '.join(DTYPES)}")
        num_bytes = math.prod(self.shape) * dtype.itemsize
        # A copy: the map is read-only, which torch does not know, and a tensor there need not be aligned.
        raw = np.frombuffer(self._mapped, dtype=np.uint8, count=num_bytes, offset=self._location.begin).copy()
        return torch.from_numpy(raw).view(dtype).view(self.shape)

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


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ConfigError(f"{path}: can't be opened: {error.strerror}") from error
