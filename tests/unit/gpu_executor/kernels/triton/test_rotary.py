"""Rotation gives the reference's numbers, where query and key lie in a fused row, whole heads and parts of them."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.layouts import RotaryTable
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from tests.support.elementwise import assert_close, each_dtype, normal
from tests.support.planted import assert_notices

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.rotary import rotary

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def rotation(head_dim: int, rotary_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, RotaryTable]:
    """Query and key as views of a fused row, positions and a table."""
    angles = 100 * normal(50, rotary_dim // 2)
    fused = normal(7, (9 + 2 + 2) * head_dim, dtype=dtype)
    query, key, _ = (part.view(7, -1, head_dim) for part in fused.split([n * head_dim for n in (9, 2, 2)], dim=1))
    return query, key, torch.tensor([0, 49, 3, 3, 17, 20, 1]), RotaryTable(angles.cos(), angles.sin())


@each_dtype
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (24, 24), (80, 32), (6, 6), (40, 14)])
def test_rotation_gives_the_reference(head_dim: int, rotary_dim: int, dtype: torch.dtype) -> None:
    arguments = rotation(head_dim, rotary_dim, dtype)
    for expected, actual in zip(ReferenceOps().rotary(*arguments), rotary(*arguments), strict=True):
        assert actual.is_contiguous()
        assert_close(expected, actual)


def test_no_tokens_are_no_work() -> None:
    query, key, positions, table = rotation(64, 64, torch.float32)
    rotated_query, rotated_key = rotary(query[:0], key[:0], positions[:0], table)
    assert rotated_query.shape == (0, 9, 64)
    assert rotated_key.shape == (0, 2, 64)


@each_dtype
def test_tolerance_notices_planted_errors(dtype: torch.dtype) -> None:
    arguments = rotation(64, 64, dtype)
    for expected, actual in zip(ReferenceOps().rotary(*arguments), rotary(*arguments), strict=True):
        assert_notices(functools.partial(assert_close, expected), actual)
