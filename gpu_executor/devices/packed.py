"""Several small arrays in one copy: on a GPU a copy costs its launch, some microseconds, and hardly its bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .base import Device

# Triton compiles a kernel again for an argument that does not start at a multiple of 16 bytes. Where an array starts
# must not hang on how many rows the arrays before it have.
ALIGNMENT = 16


def upload_together(device: Device, arrays: Sequence[np.ndarray]) -> list[Tensor]:
    """Copy arrays to a device in one piece.

    Args:
        device: where to.
        arrays: one-dimensional, of dtypes that numpy and torch share; empty ones are welcome.

    Returns:
        One tensor each, with the array's length and dtype, that starts at a multiple of 16 bytes. They share memory,
        which lives as long as any of them.
    """
    offsets = []
    num_bytes = 0
    for array in arrays:
        offsets.append(num_bytes)
        num_bytes += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    buffer = np.zeros(max(num_bytes, ALIGNMENT), dtype=np.uint8)  # torch views nothing as numbers of another size
    for array, offset in zip(arrays, offsets, strict=True):
        buffer[offset : offset + array.nbytes].view(array.dtype)[:] = array
    packed = device.upload(buffer)
    return [
        packed[offset : offset + array.nbytes].view(_torch_dtype(array.dtype))
        for array, offset in zip(arrays, offsets, strict=True)
    ]


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=dtype)).dtype
