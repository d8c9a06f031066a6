"""Each op on the device beside the reference on the host, in float32 on the same numbers.

Inputs are rounded to the op's dtype first, so that what is left is the op's own error: the rounding of its result, and
for sums that of their parts. Unwritten slots of KV memory hold NaN. Several processes share the comparisons: most of
their time is a compiler's, and what it made stays in Triton's cache for the parts that follow.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from pagewire.checkpoint.model_config import ModelConfig
from pagewire.gpu_executor.kernels.layouts import RotaryTable
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kernels.select import select_ops
from tools.gpu_check.comparison import ROUNDED_ONCE, SUMMED, Case, check
from tools.gpu_check.correctness_checkpoints import checkpoint_cases
from tools.gpu_check.correctness_draws import draw_checks
from tools.gpu_check.correctness_mixtures import MixtureCases
from tools.gpu_check.correctness_products import ProductCases
from tools.gpu_check.inputs import Chunk, Inputs, empty_cache, moved, numbers, paged
from tools.gpu_check.records import Check
from tools.gpu_check.setting import Setting

_EPS = 1e-5
_FP8_SCALES = (0.03, 1.7)  # of keys and values in 8 bits, neither 1 nor alike, so that none is forgotten


class OpCases:
    """The comparisons of one dtype, but for products.

    Args:
        ops: on the device.
        inputs: numbers.
        model: whose heads attend, so that later parts find these kernels compiled.
        is_tiny: small shapes, for an interpreter.
    """

    def __init__(self, ops: Ops, inputs: Inputs, model: ModelConfig, *, is_tiny: bool) -> None:
        self._ops = ops
        self._reference = ReferenceOps()
        self._numbers = inputs.numbers
        self._device = inputs.device
        self._dtype = inputs.dtype
        self._generator = inputs.generator
        self._heads = (model.num_heads, model.num_kv_heads, model.head_dim)
        self._is_tiny = is_tiny

    def all(self) -> Iterator[Case]:
        """Yield the cases, the plainest first."""
        rows, hidden = (3, 96) if self._is_tiny else (67, 4096)
        inner = 64 if self._is_tiny else 1536
        yield Case("rms_norm", f"{rows} x {hidden}", ROUNDED_ONCE, partial(self._rms_norm, rows, hidden))
        yield Case("add_rms_norm", f"{rows} x {hidden}", ROUNDED_ONCE, partial(self._add_rms_norm, rows, hidden))
        yield Case("rotary", f"{rows} tokens", ROUNDED_ONCE, partial(self._rotary, rows))
        yield Case("rms_norm", f"{rows} x {hidden}, float32 weight", ROUNDED_ONCE, partial(self._float32_norm, rows))
        yield Case("silu_and_mul", f"{rows} x {inner}", ROUNDED_ONCE, partial(self._silu_and_mul, rows, inner))
        gelu = partial(self._gelu_tanh_and_mul, rows, inner)
        yield Case("gelu_tanh_and_mul", f"{rows} x {inner}", ROUNDED_ONCE, gelu)
        yield Case("bound_logits", f"{rows} x {hidden}", ROUNDED_ONCE, partial(self._bound_logits, rows, hidden))
        yield from self._attention_cases()
        yield Case("copy_blocks", "a swap", 0.0, self._copy_blocks)

    def _rms_norm(self, rows: int, size: int) -> tuple[Tensor, Tensor]:
        (x, on_device), (weight, weight_there) = self._numbers(rows, size), self._numbers(size)
        return self._ops.rms_norm(on_device, weight_there, _EPS), self._reference.rms_norm(x, weight, _EPS)

    def _float32_norm(self, rows: int) -> tuple[Tensor, Tensor]:
        """Weights that are stored less 1: their sum with it has more bits than activations of 16."""
        x, on_device = self._numbers(rows, 96 if self._is_tiny else 4096)
        weight = 1.0 + 0.1 * numbers(self._generator, x.shape[1])
        normed = self._ops.rms_norm(on_device, weight.to(self._device), _EPS)
        return normed, self._reference.rms_norm(x, weight, _EPS)

    def _add_rms_norm(self, rows: int, size: int) -> tuple[Tensor, Tensor]:
        (x, x_there), (residual, residual_there) = self._numbers(rows, size), self._numbers(rows, size)
        weight, weight_there = self._numbers(size)
        normed, total = self._ops.add_rms_norm(x_there, residual_there, weight_there, _EPS)
        # The stream is rounded before it is normed: the norm is held against the rounded one.
        expected_total = (x + residual).to(self._dtype).float()
        expected = self._reference.rms_norm(expected_total, weight, _EPS)
        return torch.cat([normed, total]), torch.cat([expected, expected_total])

    def _rotary(self, rows: int) -> tuple[Tensor, Tensor]:
        heads, kv_heads, head_dim = self._heads
        query, query_there = self._numbers(rows, heads, head_dim)
        key, key_there = self._numbers(rows, kv_heads, head_dim)
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

    def _gelu_tanh_and_mul(self, rows: int, inner: int) -> tuple[Tensor, Tensor]:
        gate_up, there = self._numbers(rows, 2 * inner)
        return self._ops.gelu_tanh_and_mul(there), self._reference.gelu_tanh_and_mul(gate_up)

    def _bound_logits(self, rows: int, vocab_size: int) -> tuple[Tensor, Tensor]:
        logits, there = self._numbers(rows, vocab_size)
        return self._ops.bound_logits(there, 4.0, 5.0), self._reference.bound_logits(logits, 4.0, 5.0)

    def _attention_cases(self) -> Iterator[Case]:
        decodes = [Chunk(1, 1), Chunk(17, 1), Chunk(40, 1)] if self._is_tiny else [Chunk(n, 1) for n in (1, 300, 2049)]
        # All ways to attend: short chunks, of which one comes after many cached keys, a long one, a decode.
        prefill = (
            [Chunk(9, 9), Chunk(20, 4), Chunk(30, 1)]
            if self._is_tiny
            else [Chunk(70, 70), Chunk(1300, 33), Chunk(700, 300), Chunk(99, 1)]
        )
        long = [Chunk(280, 270)] if self._is_tiny else [Chunk(300, 300), Chunk(1100, 400)]
        dense = self._dtype
        for name, chunks, window, soft_cap, cache_dtype in (
            ("decodes", decodes, None, None, dense),
            ("prefill, chunks over cached prefixes, decode", prefill, None, None, dense),
            ("long chunks", long, None, None, dense),
            ("decodes, window of 33", decodes, 33, None, dense),
            ("mixed, soft cap of 5", prefill, None, 5.0, dense),
            ("decodes, e4m3 cache", decodes, None, None, torch.float8_e4m3fn),
            ("mixed, e4m3 cache", prefill, None, None, torch.float8_e4m3fn),
            ("mixed, e5m2 cache, window of 33, soft cap of 5", prefill, 33, 5.0, torch.float8_e5m2),
        ):
            attend = partial(self._attention, chunks, window, soft_cap, cache_dtype, self._heads)
            yield Case("paged_attention", name, SUMMED, attend)
        wide = (2, 1, 32) if self._is_tiny else (8, 4, 256)
        for name, chunks in (("decodes", decodes), ("mixed", prefill), ("long chunks", long)):
            attend = partial(self._attention, chunks, 33, 5.0, dense, wide)
            yield Case("paged_attention", f"{name}, head_dim {wide[2]}, window of 33, soft cap of 5", SUMMED, attend)

    def _attention(
        self,
        chunks: Sequence[Chunk],
        window: int | None,
        soft_cap: float | None,
        cache_dtype: torch.dtype,
        shape: tuple[int, int, int],
    ) -> tuple[Tensor, Tensor]:
        heads, kv_heads, head_dim = shape
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
            if cache_dtype.itemsize == 1:
                cache = cache._replace(key_scale=_FP8_SCALES[0], value_scale=_FP8_SCALES[1])
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


def run(setting: Setting) -> Iterator[Check]:
    """The part of the check: every op in the dtype that models have, draws, and batch invariance."""
    ops = select_ops("triton", device=torch.device(setting.device))
    dtype = _dtypes(setting)[0]
    yield from op_checks(ops, setting, dtype)
    for case in setting.own(checkpoint_cases(ops, setting, dtype)):
        yield check(case, dtype)
    yield from draw_checks(ops, setting)
    yield from invariance_checks(setting, dtype)


def run_second_dtype(setting: Setting) -> Iterator[Check]:
    """A part of its own: kernels of another dtype are compiled anew, which is what takes the time."""
    yield from op_checks(select_ops("triton", device=torch.device(setting.device)), setting, _dtypes(setting)[1])


def op_checks(ops: Ops, setting: Setting, dtype: torch.dtype) -> Iterator[Check]:
    """Compare every op."""
    inputs = Inputs(dtype, torch.device(setting.device))
    cases = OpCases(ops, inputs, setting.model, is_tiny=setting.is_tiny).all()
    products = ProductCases(ops, inputs, is_tiny=setting.is_tiny).all()
    mixtures = MixtureCases(ops, inputs, is_tiny=setting.is_tiny).all()
    for case in setting.own(itertools.chain(cases, products, mixtures)):
        yield check(case, dtype)


def invariance_checks(setting: Setting, dtype: torch.dtype) -> Iterator[Check]:
    """With --batch-invariant products are right too, and a row has the same bits alone and among others."""
    device = torch.device(setting.device)
    ops = select_ops("triton", device=device, is_batch_invariant=True)
    inputs = Inputs(dtype, device, seed=2)
    products = ProductCases(ops, inputs, is_tiny=setting.is_tiny).invariant()
    mixtures = MixtureCases(ops, inputs, is_tiny=setting.is_tiny).invariant()
    for case in setting.own(itertools.chain(products, mixtures)):
        yield check(case, dtype)


def _dtypes(setting: Setting) -> tuple[torch.dtype, torch.dtype]:
    # The interpreter computes by numpy, which has no bfloat16.
    return (torch.float16, torch.float32) if setting.is_tiny else (torch.bfloat16, torch.float16)
