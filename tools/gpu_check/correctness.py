"""Each op on the device beside the reference on the host, in float32 on the same numbers.

Inputs are rounded to the op's dtype first, so that what is left is the op's own error: the rounding of its result, and
for sums that of their parts. Unwritten slots of KV memory hold NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.layouts import DenseWeight, RotaryTable
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kernels.select import select_ops
from tools.gpu_check.correctness_draws import draw_checks
from tools.gpu_check.inputs import Chunk, empty_cache, moved, numbers, paged, weight_of
from tools.gpu_check.records import Check
from tools.gpu_check.setting import Setting

# In units of the dtype's epsilon: a result that is rounded once is off by 0.3 of them on average, which counts
# `_OF_THE_MEAN` times; sums of rounded products by more.
_ROUNDED_ONCE, _SUMMED = 3.0, 6.0
_OF_THE_MEAN = 8.0
# Sums of thousands of products are no more exact than this in float32, in which everything is summed.
_LEAST_EPS = 2.0**-18
_EPS = 1e-5


class Case(NamedTuple):
    """One comparison.

    Attributes:
        op: which kernel.
        name: on what.
        ulps: what the difference may be, in units of the dtype's epsilon.
        run: returns what the device gives and what is expected.
    """

    op: str
    name: str
    ulps: float
    run: Callable[[], tuple[Tensor, Tensor]]


class OpCases:
    """The comparisons of one dtype.

    Args:
        ops: on the device.
        device: where it computes.
        dtype: of activations.
        is_tiny: small shapes, for an interpreter.
    """

    def __init__(self, ops: Ops, device: torch.device, dtype: torch.dtype, *, is_tiny: bool) -> None:
        self._ops = ops
        self._reference = ReferenceOps()
        self._device = device
        self._dtype = dtype
        self._is_tiny = is_tiny
        self._generator = torch.Generator().manual_seed(1)

    def all(self) -> Iterator[Case]:
        """Yield the cases, the plainest first."""
        rows, hidden = (3, 96) if self._is_tiny else (67, 4096)
        inner = 64 if self._is_tiny else 1536
        yield Case("rms_norm", f"{rows} x {hidden}", _ROUNDED_ONCE, partial(self._rms_norm, rows, hidden))
        yield Case("add_rms_norm", f"{rows} x {hidden}", _ROUNDED_ONCE, partial(self._add_rms_norm, rows, hidden))
        yield Case("rotary", f"{rows} tokens", _ROUNDED_ONCE, partial(self._rotary, rows))
        yield Case("silu_and_mul", f"{rows} x {inner}", _ROUNDED_ONCE, partial(self._silu_and_mul, rows, inner))
        yield from self._attention_cases()
        yield Case("copy_blocks", "a swap", 0.0, self._copy_blocks)
        dense = str(self._dtype).removeprefix("torch.")
        for layout in (dense, "int4", "int8", "fp8"):
            for num_rows in (1, rows):
                product = partial(self._linear, layout, num_rows, hidden, inner)
                yield Case(f"linear {layout}", f"{num_rows} x {hidden} -> {inner}", _SUMMED, product)

    def _numbers(self, *shape: int) -> tuple[Tensor, Tensor]:
        """Return the same numbers on the host, as float32, and on the device."""
        values = numbers(self._generator, *shape, dtype=self._dtype)
        return values.float(), values.to(self._device)

    def _rms_norm(self, rows: int, size: int) -> tuple[Tensor, Tensor]:
        (x, on_device), (weight, weight_there) = self._numbers(rows, size), self._numbers(size)
        return self._ops.rms_norm(on_device, weight_there, _EPS), self._reference.rms_norm(x, weight, _EPS)

    def _add_rms_norm(self, rows: int, size: int) -> tuple[Tensor, Tensor]:
        (x, x_there), (residual, residual_there) = self._numbers(rows, size), self._numbers(rows, size)
        weight, weight_there = self._numbers(size)
        normed, total = self._ops.add_rms_norm(x_there, residual_there, weight_there, _EPS)
        # The stream is rounded before it is normed: the norm is held against the rounded one.
        expected_total = (x + residual).to(self._dtype).float()
        expected = self._reference.rms_norm(expected_total, weight, _EPS)
        return torch.cat([normed, total]), torch.cat([expected, expected_total])

    def _rotary(self, rows: int) -> tuple[Tensor, Tensor]:
        head_dim = 16 if self._is_tiny else 128
        (query, query_there), (key, key_there) = self._numbers(rows, 4, head_dim), self._numbers(rows, 2, head_dim)
        angles = torch.rand(512, head_dim // 2, generator=self._generator) * 6
        table = RotaryTable(angles.cos(), angles.sin())
        there = RotaryTable(table.cos.to(self._device), table.sin.to(self._device))
        positions = torch.randint(0, 512, (rows,), generator=self._generator)
        # Kernels may rotate in place.
        rotated = self._ops.rotary(query_there.clone(), key_there.clone(), positions.to(self._device), there)
        expected = self._reference.rotary(query, key, positions, table)
        return torch.cat([one.flatten() for one in rotated]), torch.cat([one.flatten() for one in expected])

    def _silu_and_mul(self, rows: int, inner: int) -> tuple[Tensor, Tensor]:
        gate_up, there = self._numbers(rows, 2 * inner)
        return self._ops.silu_and_mul(there), self._reference.silu_and_mul(gate_up)

    def _linear(self, layout: str, rows: int, in_features: int, out_features: int) -> tuple[Tensor, Tensor]:
        weight = weight_of(layout, self._generator, out_features, in_features)
        x, x_there = self._numbers(rows, in_features)
        there = self._ops.prepare_weight(moved(weight, self._device))
        return self._ops.linear(x_there, there), x.double() @ dequantize(weight, torch.float64).T

    def _attention_cases(self) -> Iterator[Case]:
        decodes = [Chunk(1, 1), Chunk(17, 1), Chunk(40, 1)] if self._is_tiny else [Chunk(n, 1) for n in (1, 300, 2049)]
        prefill = (
            [Chunk(9, 9), Chunk(20, 4), Chunk(30, 1)]
            if self._is_tiny
            else [Chunk(70, 70), Chunk(300, 33), Chunk(99, 1)]
        )
        dense = self._dtype
        for name, chunks, window, soft_cap, cache_dtype in (
            ("decodes", decodes, None, None, dense),
            ("prefill, chunk over a cached prefix, decode", prefill, None, None, dense),
            ("decodes, window of 33", decodes, 33, None, dense),
            ("mixed, soft cap of 5", prefill, None, 5.0, dense),
            ("decodes, fp8 cache", decodes, None, None, torch.float8_e4m3fn),
            ("mixed, fp8 cache", prefill, None, None, torch.float8_e4m3fn),
        ):
            attend = partial(self._attention, chunks, window, soft_cap, cache_dtype)
            yield Case("paged_attention", name, _SUMMED, attend)

    def _attention(
        self, chunks: Sequence[Chunk], window: int | None, soft_cap: float | None, cache_dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        heads, kv_heads, head_dim = (4, 2, 16) if self._is_tiny else (8, 2, 128)
        memory = paged(chunks)
        num_cached = len(memory.whole.positions)
        (key, key_there), (value, value_there) = (self._numbers(num_cached, kv_heads, head_dim) for _ in range(2))
        query, query_there = self._numbers(len(memory.step.positions), heads, head_dim)
        results = []
        for ops, keys, values, queries, device in (
            (self._ops, key_there, value_there, query_there, self._device),
            (self._reference, key, value, query, torch.device("cpu")),
        ):
            cache = empty_cache(ops, kv_heads, head_dim, memory.num_blocks, cache_dtype, device)
            ops.store_kv(keys, values, cache, memory.whole.slot_mapping.to(device))
            step = moved(memory.step, device)
            results.append(
                ops.paged_attention(
                    queries, cache, step, scale=head_dim**-0.5, sliding_window=window, soft_cap=soft_cap
                )
            )
        return results[0], results[1]

    def _copy_blocks(self) -> tuple[Tensor, Tensor]:
        cache = empty_cache(self._ops, 2, 16, 6, self._dtype, self._device)
        for tensor in cache[:2]:
            tensor.copy_(numbers(self._generator, *tensor.shape))
        before = cache.key.clone()
        source, destination = (torch.tensor(ids, device=self._device) for ids in ([1, 4, 5], [4, 1, 0]))
        self._ops.copy_blocks(cache, source, destination)
        return cache.key, before[[5, 4, 2, 3, 1, 5]]


def check(case: Case, dtype: torch.dtype) -> Check:
    """Run a case; whatever an op raises is its failure, and the others go on."""
    name = f"{case.name}, {str(dtype).removeprefix('torch.')}"
    limit = case.ulps * max(torch.finfo(dtype).eps, _LEAST_EPS)
    try:
        actual, expected = case.run()
    except Exception as exc:  # whatever a kernel, its compiler or the driver raises is the finding
        return Check(op=case.op, case=name, error=None, limit=limit, failure=_first_line(exc))
    return Check(op=case.op, case=name, error=relative_error(actual, expected), limit=limit)


def relative_error(actual: Tensor, expected: Tensor) -> float | None:
    """Return how far a result is off; None if the shapes differ, or some difference is no number.

    That is the largest difference, each by the size of what is expected there and of all that is expected together; or
    the mean difference some times over, if that is more: a factor that is slightly wrong everywhere hides below the
    largest rounding error of 16 bits, but not below the mean one.
    """
    got, wanted = actual.detach().cpu().double(), expected.detach().cpu().double()
    if got.shape != wanted.shape:
        return None
    mean_size = wanted.square().mean().sqrt()
    largest = ((got - wanted).abs() / (wanted.abs() + mean_size)).max().item()
    mean = ((got - wanted).square().mean().sqrt() / mean_size).item()
    error = max(largest, _OF_THE_MEAN * mean)
    return error if math.isfinite(error) else None


def run(setting: Setting) -> Iterator[Check]:
    """The part of the check: every op in the dtype that models have, draws, and batch invariance."""
    ops = select_ops("triton", device=torch.device(setting.device))
    dtype = _dtypes(setting)[0]
    yield from op_checks(ops, setting, dtype)
    yield from draw_checks(ops, setting)
    yield from invariance_checks(setting, dtype)


def run_second_dtype(setting: Setting) -> Iterator[Check]:
    """A part of its own: kernels of another dtype are compiled anew, which is what takes the time."""
    yield from op_checks(select_ops("triton", device=torch.device(setting.device)), setting, _dtypes(setting)[1])


def op_checks(ops: Ops, setting: Setting, dtype: torch.dtype) -> Iterator[Check]:
    """Compare every op."""
    for case in OpCases(ops, torch.device(setting.device), dtype, is_tiny=setting.is_tiny).all():
        yield check(case, dtype)


def invariance_checks(setting: Setting, dtype: torch.dtype) -> Iterator[Check]:
    """With --batch-invariant, a row has the same bits alone and among others."""
    device = torch.device(setting.device)
    ops = select_ops("triton", device=device, is_batch_invariant=True)
    generator = torch.Generator().manual_seed(2)
    in_features, out_features, rows = (64, 48, 5) if setting.is_tiny else (4096, 1536, 200)
    matrix = DenseWeight(numbers(generator, out_features, in_features, dtype=dtype) * in_features**-0.5)
    x = numbers(generator, rows, in_features, dtype=dtype).to(device)
    weight = ops.prepare_weight(moved(matrix, device))

    def product() -> tuple[Tensor, Tensor]:
        together = ops.linear(x, weight)
        return together, torch.cat([ops.linear(x[row : row + 1], weight) for row in range(rows)])

    yield check(Case("linear, batch invariant", f"{rows} rows together and alone", 0.0, product), dtype)


def _dtypes(setting: Setting) -> tuple[torch.dtype, torch.dtype]:
    # The interpreter computes by numpy, which has no bfloat16.
    return (torch.float16, torch.float32) if setting.is_tiny else (torch.bfloat16, torch.float16)


def _first_line(exc: Exception) -> str:
    lines = str(exc).strip().splitlines()
    return f"{type(exc).__name__}: {lines[0] if lines else ''}"[:300]
