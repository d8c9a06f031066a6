"""What a step's draws leave for the host, in one piece of memory: one copy brings it all."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..devices.packed import ALIGNMENT

_NUMPY_DTYPES: dict[torch.dtype, np.dtype] = {
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}


class Section(NamedTuple):
    """One tensor of the results.

    Attributes:
        dtype: a 32-bit or 64-bit one.
        shape: its shape; it may be empty.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]


class PackedResults:
    """Tensors that share one buffer.

    Args:
        sections: what they are.
        device: where they are.

    Attributes:
        buffer: [num_bytes] uint8, to be copied to the host.
        tensors: one a section, contiguous; their contents are undefined.
    """

    def __init__(self, sections: Sequence[Section], device: torch.device) -> None:
        self._sections = list(sections)
        self._offsets: list[int] = []
        num_bytes = 0
        for section in sections:
            self._offsets.append(num_bytes)
            num_bytes += -(-_num_bytes(section) // ALIGNMENT) * ALIGNMENT
        self.buffer = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self.tensors: list[Tensor] = [
            self.buffer[offset : offset + _num_bytes(section)].view(section.dtype).view(section.shape)
            for offset, section in zip(self._offsets, self._sections, strict=True)
        ]

    def split(self, array: np.ndarray) -> list[np.ndarray]:
        """Return the tensors as they are in a copy of the buffer."""
        return [
            array[offset : offset + _num_bytes(section)].view(_NUMPY_DTYPES[section.dtype]).reshape(section.shape)
            for offset, section in zip(self._offsets, self._sections, strict=True)
        ]


def _num_bytes(section: Section) -> int:
    return prod(section.shape) * section.dtype.itemsize
