"""How fast each op is on the shapes of the model, in decode steps and in a prefill, with its bytes and operations.

The ops of the roofline carry its own numbers, so that their times can be held against it. Each call of a product or of
attention reads other weights or keys than the one before, as a step's layers do; what the ops between them and draws
read was written just before, in a step too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pagewire.checkpoint.estimate.roofline import OpCost, Work, decode, end_costs, layer_costs, prefill
from pagewire.checkpoint.estimate.served import KVLayout, Served
from pagewire.checkpoint.estimate.weights import WeightFormat, format_bits
from pagewire.checkpoint.placement import Placement
from pagewire.gpu_executor.kernels.device_sampling_ops import DeviceSamplingOps
from pagewire.gpu_executor.kernels.draw_arrays import DrawArrays, RandomRow
from pagewire.gpu_executor.kernels.draws import Filters, NoiseKey
from pagewire.gpu_executor.kernels.layouts import (
    DenseWeight,
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    LinearWeight,
    RotaryTable,
)
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.select import select_ops
from tools.gpu_check.inputs import Chunk, PlainWeight, empty_cache, moved, paged, weight_of
from tools.gpu_check.records import OpRate
from tools.gpu_check.setting import Setting
from tools.gpu_check.stopwatch import seconds_a_call

# What the copies of a weight or a cache take together: several times what a device's caches hold.
_COLD_BYTES = 256 << 20
_MAX_COPIES = 64  # attention of one request reads 4 MB
_PREFILL_TOKENS = 2048
_REPEATED = 128  # rows; a multiple of every tile that shares a scale
_KV = KVLayout(name="bfloat16", bytes_a_value=2)
_PRODUCTS = {"qkv", "output projection", "gate and up", "down", "output layer"}


class OpRates:
    """Measures.

    Args:
        setting: the model and the device.
        ops: the kernels.
    """

    def __init__(self, setting: Setting, ops: Ops) -> None:
        self._setting = setting
        self._model = setting.model
        self._ops = ops
        self._device = torch.device(setting.device)
        self._dtype = torch.float16 if setting.is_tiny else torch.bfloat16
        self._generator = torch.Generator().manual_seed(4)

    def dense_steps(self) -> Iterator[OpRate]:
        """Yield the ops of decode steps and of a prefill, with 16-bit weights."""
        tokens = 16 if self._setting.is_tiny else _PREFILL_TOKENS
        works = [decode(batch, self._setting.context) for batch in self._setting.batches]
        for work in [*works, prefill(tokens)]:
            yield from self._step(work)
        if isinstance(self._ops, DeviceSamplingOps):
            for work in works:
                yield self._draws(self._ops, self._costs("bfloat16", work)["draws"], work.num_requests)

    def quantized(self) -> Iterator[OpRate]:
        """Yield the largest product with other weights."""
        layouts: tuple[WeightFormat, ...] = ("int4", "int8", "fp8")
        for layout in layouts:
            for batch in self._setting.batches:
                cost = self._costs(layout, decode(batch, 1))["gate and up"]
                yield self._product(cost, layout, batch, name=f"gate and up, {layout}")

    def _costs(self, layout: WeightFormat, work: Work) -> dict[str, OpCost]:
        served = Served(model=self._model, bits=format_bits(layout), kv=_KV)
        costs = (*layer_costs(served, Placement(), work), *end_costs(served, Placement(), work))
        return {cost.name: cost for cost in costs}

    def _step(self, work: Work) -> Iterator[OpRate]:
        costs = self._costs("bfloat16", work)
        for name, cost in costs.items():
            if name in _PRODUCTS:
                rows = work.num_requests if name == "output layer" else work.num_rows
                yield self._product(cost, str(self._dtype).removeprefix("torch."), rows, name=name)
        yield self._attention(costs["attention"], work)
        yield from self._small_ops(work.num_rows)

    def _product(self, cost: OpCost, layout: str, rows: int, *, name: str) -> OpRate:
        out_features, in_features = self._shape_of(cost.name)
        weights = self._weights(layout, out_features, in_features)
        x = self._numbers(rows, in_features)
        calls = [_bound(self._ops.linear, x, weight) for weight in weights]
        return self._rate(name, rows, calls, cost.num_bytes, cost.operations)

    def _shape_of(self, name: str) -> tuple[int, int]:
        model = self._model
        heads = model.num_heads * model.head_dim
        return {
            "qkv": (heads + 2 * model.num_kv_heads * model.head_dim, model.hidden_size),
            "output projection": (model.hidden_size, heads),
            "gate and up": (2 * model.intermediate_size, model.hidden_size),
            "down": (model.hidden_size, model.intermediate_size),
            "output layer": (model.vocab_size, model.hidden_size),
        }[name]

    def _weights(self, layout: str, out_features: int, in_features: int) -> list[LinearWeight]:
        # Making billions of numbers on the host would take the check's minutes: a few rows are repeated on the device.
        block = _REPEATED if out_features % _REPEATED == 0 else out_features
        few = moved(weight_of(layout, self._generator, block, in_features), self._device)
        times = out_features // block
        copies = self._copies(times * _num_bytes(few))
        return [self._ops.prepare_weight(_repeated_rows(few, times)) for _ in range(copies)]

    def _numbers(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self._device).to(self._dtype)

    def _copies(self, num_bytes: int) -> int:
        if self._setting.is_tiny:
            return 1  # an interpreter has no caches to fill
        return min(_MAX_COPIES, max(1, -(-_COLD_BYTES // num_bytes)))

    def _attention(self, cost: OpCost, work: Work) -> OpRate:
        model = self._model
        memory = paged([Chunk(work.context, work.num_tokens)] * work.num_requests)
        step = moved(memory.step, self._device)
        slots = memory.whole.slot_mapping.to(self._device)
        query = self._numbers(work.num_rows, model.num_heads, model.head_dim)
        rows = self._numbers(len(slots), model.num_kv_heads, model.head_dim)
        caches = []
        for _ in range(self._copies(int(cost.num_bytes))):
            cache = empty_cache(
                self._ops, model.num_kv_heads, model.head_dim, memory.num_blocks, self._dtype, self._device
            )
            self._ops.store_kv(rows, rows, cache, slots)
            caches.append(cache)
        scale = model.head_dim**-0.5
        calls = [
            _bound(self._ops.paged_attention, query, cache, step, scale=scale, sliding_window=None) for cache in caches
        ]
        return self._rate("attention", work.num_rows, calls, cost.num_bytes, cost.operations)

    def _small_ops(self, rows: int) -> Iterator[OpRate]:
        """Yield what is done between products; the roofline counts it as nothing."""
        model, size = self._model, self._dtype.itemsize
        hidden, inner = model.hidden_size, model.intermediate_size
        x = self._numbers(rows, hidden)
        weight = torch.ones(hidden, dtype=self._dtype, device=self._device)
        norm = _bound(self._ops.add_rms_norm, x, x.clone(), weight, 1e-5)
        yield self._rate("add_rms_norm", rows, [norm], 4 * rows * hidden * size, 0)
        gate_up = self._numbers(rows, 2 * inner)
        yield self._rate("silu_and_mul", rows, [_bound(self._ops.silu_and_mul, gate_up)], 3 * rows * inner * size, 0)
        query = self._numbers(rows, model.num_heads, model.head_dim)
        key = self._numbers(rows, model.num_kv_heads, model.head_dim)
        angles = torch.zeros(64, model.head_dim // 2, device=self._device)
        table = RotaryTable(angles.cos(), angles.sin())
        positions = torch.arange(rows, device=self._device) % 64
        heads = model.num_heads + model.num_kv_heads
        rotate = _bound(self._ops.rotary, query, key, positions, table)
        yield self._rate("rotary", rows, [rotate], 2 * rows * heads * model.head_dim * size, 0)
        cache = empty_cache(self._ops, model.num_kv_heads, model.head_dim, rows, self._dtype, self._device)
        store = _bound(self._ops.store_kv, key, key, cache, torch.arange(rows, device=self._device))
        yield self._rate("store_kv", rows, [store], 4 * rows * model.num_kv_heads * model.head_dim * size, 0)

    def _draws(self, ops: DeviceSamplingOps, cost: OpCost, rows: int) -> OpRate:
        """Time draws with temperature and top_p from logits of which hundreds of tokens are likely."""
        vocab_size = self._model.vocab_size
        logits = 3 * torch.randn(rows, vocab_size, device=self._device)
        filters = Filters(top_k=0, top_p=0.9, min_p=0.0)
        random_rows = [RandomRow(row, 0.8, filters, NoiseKey(row, 0, 5), (row,)) for row in range(rows)]
        arrays = DrawArrays.of(random_rows, vocab_size)
        table = arrays.table([torch.from_numpy(array).to(self._device) for array in arrays.arrays])
        tokens, states = (torch.zeros(rows, dtype=torch.int64, device=self._device) for _ in range(2))

        def draw() -> None:
            bests = ops.find_best_tokens(logits, vocab_size, with_groups=False)
            best_values = ops.settle(bests, bests, vocab_size, tokens, states)
            ops.draw_tokens(logits, vocab_size, bests, best_values, states, table, tokens)

        return self._rate("draws, top_p and temperature", rows, [draw], cost.num_bytes, cost.operations)

    def _rate(
        self, op: str, rows: int, calls: Sequence[Callable[[], object]], num_bytes: float, operations: float
    ) -> OpRate:
        return OpRate(
            op=op,
            num_rows=rows,
            seconds=seconds_a_call(calls, self._setting.device),
            num_bytes=num_bytes,
            operations=operations,
        )


def run(setting: Setting) -> Iterator[OpRate]:
    """The part of the check."""
    with torch.inference_mode():
        rates = OpRates(setting, select_ops("triton", device=torch.device(setting.device)))
        yield from rates.dense_steps()
        yield from rates.quantized()


def _bound(function: Callable[..., object], *arguments: object, **options: object) -> Callable[[], object]:
    return lambda: function(*arguments, **options)


def _num_bytes(weight: PlainWeight) -> int:
    """Return what a weight takes: several bytes a number, or half of one."""
    contents = [getattr(weight, field.name) for field in dataclasses.fields(weight)]
    return sum(content.nbytes for content in contents if isinstance(content, Tensor))


def _repeated_rows(weight: PlainWeight, times: int) -> PlainWeight:
    """Return a matrix with the rows of another, again and again."""
    match weight:
        case DenseWeight():
            return DenseWeight(weight.weight.repeat(times, 1))
        case Int4Weight():
            codes, scale, minimum = (part.repeat(times, 1) for part in (weight.codes, weight.scale, weight.minimum))
            return Int4Weight(codes, scale, minimum, weight.num_channels)
        case Int8Weight(minimum=None):
            return Int8Weight(weight.codes.repeat(times, 1), weight.scale.repeat(times, 1))
        case Fp8Weight():
            codes = weight.codes.view(torch.uint8).repeat(times, 1).view(weight.codes.dtype)
            return Fp8Weight(codes, weight.scale.repeat(times, 1), weight.tile_rows, weight.tile_columns)
    raise TypeError(f"no rows of a {type(weight).__name__} can be repeated")
