"""Triton's names of dtypes, and the one in which matrix units multiply."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from .backend import is_interpreted

_DTYPES = {
    torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32,
    torch.int16: tl.int16, torch.int32: tl.int32, torch.int64: tl.int64,
}  # fmt: skip


def dot_dtype(dtype: torch.dtype) -> Any:  # a dtype of Triton's, which is untyped
    """Return Triton's name of a dtype; float32 for bfloat16 under the interpreter, which has no products of that."""
    if dtype == torch.bfloat16 and is_interpreted():
        return tl.float32
    return _DTYPES[dtype]


def triton_dtype(dtype: torch.dtype) -> Any:  # a dtype of Triton's, which is untyped
    """Return Triton's name of a dtype: what addresses in memory point at."""
    return _DTYPES[dtype]
