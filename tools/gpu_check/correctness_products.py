"""Products beside the reference, in each way in which they are computed, and rows alone beside the same among others.

The ways are those of `kernels/triton/launches/products.py` and `products.py` beside it: few rows, as many as a batch
has, and so many that a quantized weight is unpacked; narrow and wide matrices; with batch invariance and without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from tools.gpu_check.comparison import SUMMED, Case, name_of
from tools.gpu_check.inputs import Inputs, moved, weight_of

QUANTIZED = ("int4", "int8", "fp8")
VARIANTS = ("int4-128", "int4-permuted", "int8-16", "fp8-rows")
"""Layouts that kernels take by other constants: larger groups, a gather before them, minima and groups of 16, a scale a
row."""
_ROWS = (1, 40, 600)
_WIDE = 16_384  # out_features; beyond 8,192 no channels are split


class ProductCases:
    """The comparisons of products in one dtype.

    Args:
        ops: on the device.
        inputs: numbers.
        is_tiny: small shapes, for an interpreter.
    """

    def __init__(self, ops: Ops, inputs: Inputs, *, is_tiny: bool) -> None:
        self._ops = ops
        self._inputs = inputs
        self._dense = name_of(inputs.dtype)
        self._in_features, self._narrow = (96, 64) if is_tiny else (4096, 1536)
        self._wide = 128 if is_tiny else _WIDE
        self._batch = 5 if is_tiny else _ROWS[1]

    def all(self) -> Iterator[Case]:
        """Yield the products of each layout."""
        for layout in (self._dense, *QUANTIZED):
            for rows in _ROWS:
                yield self._product("linear", layout, rows, self._narrow)
            for rows in _ROWS[:2]:
                yield self._product("linear", layout, rows, self._wide)
        for layout in VARIANTS:
            for rows in _ROWS:
                yield self._product("linear", layout, rows, self._narrow)

    def invariant(self) -> Iterator[Case]:
        """Yield the products of ops with batch invariance: they are right, and a row's bits are its own."""
        for layout in (self._dense, *QUANTIZED):
            for out_features in (self._narrow, self._wide):
                yield self._product("linear, batch invariant,", layout, self._batch, out_features)
                together = partial(self._together_and_alone, layout, self._batch, out_features)
                name = f"{self._batch} rows together and alone, -> {out_features}"
                yield Case(f"linear, batch invariant, {layout}", name, 0.0, together)

    def _product(self, op: str, layout: str, rows: int, out_features: int) -> Case:
        name = f"{rows} x {self._in_features} -> {out_features}"
        return Case(f"{op} {layout}", name, SUMMED, partial(self._linear, layout, rows, out_features))

    def _linear(self, layout: str, rows: int, out_features: int) -> tuple[Tensor, Tensor]:
        weight = weight_of(layout, self._inputs.generator, out_features, self._in_features)
        x, x_there = self._inputs.numbers(rows, self._in_features)
        there = self._ops.prepare_weight(moved(weight, self._inputs.device))
        return self._ops.linear(x_there, there), x.double() @ dequantize(weight, torch.float64).T

    def _together_and_alone(self, layout: str, rows: int, out_features: int) -> tuple[Tensor, Tensor]:
        weight = weight_of(layout, self._inputs.generator, out_features, self._in_features)
        there = self._ops.prepare_weight(moved(weight, self._inputs.device))
        _, x = self._inputs.numbers(rows, self._in_features)
        together = self._ops.linear(x, there)
        return together, torch.cat([self._ops.linear(x[row : row + 1], there) for row in range(rows)])
