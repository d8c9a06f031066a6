"""The fused decoder gives the bits of its small ops one after the other, and a token's bits are its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from pagewire.checkpoint.model_config import Activation, LayerKind
from pagewire.gpu_executor.kernels.cpu.cpu_ops import CpuOps
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing
from pagewire.gpu_executor.kernels.layouts import (
    AttentionWeights,
    DecoderLayerWeights,
    DecoderWeights,
    DenseWeight,
    LinearWeight,
    MLPWeights,
    RotaryTable,
    StackedWeight,
)
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kv_cache_spec import KVCacheSpec, LayerKVCache
from tests.support.paged import Chunk, paged_step
from tests.support.weights import permuted, random_dense, random_int4, random_int8

BLOCK_SIZE = 8
NUM_BLOCKS = 96
MAX_POSITIONS = 512

MakeWeight = Callable[..., LinearWeight]


@dataclass(frozen=True)
class Shape:
    """A model's sizes, and what its layers have besides the usual."""

    hidden_size: int = 64
    intermediate_size: int = 96
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    rotary_dim: int = 16
    sliding_windows: tuple[int | None, ...] = (None, None)
    has_head_norms: bool = False
    has_bias: bool = False
    activation: Activation = "silu"
    soft_cap: float | None = None
    has_post_norms: bool = False
    output_scale: float = 1.0
    embedding_scale: float = 1.0


GEMMA = Shape(
    num_heads=2,
    num_kv_heads=1,
    head_dim=256,
    rotary_dim=256,
    sliding_windows=(7, None),
    activation="gelu_tanh",
    soft_cap=5.0,
    has_post_norms=True,
    embedding_scale=8.0,
)
SHAPES = {
    "plain": Shape(),
    # Gate and up channels share a panel, so that no tile can compute both.
    "gate-within-panel": Shape(hidden_size=96, intermediate_size=104),
    # The last group of the down product's input is half padding.
    "half-group": Shape(intermediate_size=80),
    # A single row is cut into pieces where there are threads for them, the last of them no whole number of groups.
    "pieces-of-a-row": Shape(intermediate_size=1112),
    "qwen3": Shape(head_dim=32, has_head_norms=True, rotary_dim=32),
    "qwen2": Shape(has_bias=True),
    "partial-rotary": Shape(rotary_dim=6),
    "sliding": Shape(sliding_windows=(None, 5, None)),
    "one-kv-head": Shape(num_heads=6, num_kv_heads=1, hidden_size=40),
    "gemma": GEMMA,
    "gelu-within-panel": Shape(hidden_size=96, intermediate_size=104, activation="gelu_tanh"),
    "granite": Shape(output_scale=0.22, embedding_scale=12.0),
    "scaled-post-norms": Shape(has_post_norms=True, output_scale=0.5),
    "heads-of-96": Shape(head_dim=96, rotary_dim=96, soft_cap=3.0),
    "heads-of-112": Shape(head_dim=112, rotary_dim=28),
}
# Layouts that the shape's sizes allow are multiples of 32 channels, but for dense ones and int4.
WEIGHTS: dict[str, MakeWeight] = {
    "float32": random_dense,
    "bfloat16": lambda out, size, **more: random_dense(out, size, torch.bfloat16, **more),
    "int4": random_int4,
}


def make_layer(shape: Shape, make: MakeWeight, sliding_window: int | None, seed: int) -> DecoderLayerWeights:
    generator = torch.Generator().manual_seed(seed)

    def norm(size: int) -> Tensor:
        return 1 + 0.1 * torch.randn(size, generator=generator)

    angles = torch.arange(MAX_POSITIONS).unsqueeze(1) * (0.5 ** torch.arange(shape.rotary_dim // 2))
    query_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    bias = {"has_bias": shape.has_bias}
    attention = AttentionWeights(
        norm=norm(shape.hidden_size),
        norm_eps=1e-5,
        qkv=make(query_size + 2 * kv_size, shape.hidden_size, seed=seed, **bias),
        output=make(shape.hidden_size, query_size, seed=seed + 1, **bias),
        query_norm=norm(shape.head_dim) if shape.has_head_norms else None,
        key_norm=norm(shape.head_dim) if shape.has_head_norms else None,
        rotary=RotaryTable(angles.cos(), angles.sin()),
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        scale=shape.head_dim**-0.5,
        sliding_window=sliding_window,
        soft_cap=shape.soft_cap,
        post_norm=norm(shape.hidden_size) if shape.has_post_norms else None,
        output_scale=shape.output_scale,
    )
    mlp = MLPWeights(
        norm=norm(shape.hidden_size),
        norm_eps=1e-6,
        gate_up=make(2 * shape.intermediate_size, shape.hidden_size, seed=seed + 2, **bias),
        down=make(shape.hidden_size, shape.intermediate_size, seed=seed + 3, **bias),
        activation=shape.activation,
        post_norm=norm(shape.hidden_size) if shape.has_post_norms else None,
        output_scale=shape.output_scale,
    )
    return DecoderLayerWeights(attention, mlp)


def prepared(ops: Ops, layer: DecoderLayerWeights) -> DecoderLayerWeights:
    attention, mlp = layer.attention, layer.mlp
    return DecoderLayerWeights(
        replace(attention, qkv=ops.prepare_weight(attention.qkv), output=ops.prepare_weight(attention.output)),
        replace(mlp, gate_up=ops.prepare_weight(mlp.gate_up), down=ops.prepare_weight(mlp.down)),
    )


LENGTHS = [1, 5, 37, 90]


class Decoder:
    """A small model of one shape, as one backend runs it."""

    def __init__(
        self,
        ops: Ops,
        shape: Shape,
        make: MakeWeight,
        kv_dtype: torch.dtype = torch.float16,
        kv_scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        self.ops, self.shape, self.kv_dtype, self.kv_scales = ops, shape, kv_dtype, kv_scales
        layers = tuple(
            prepared(ops, make_layer(shape, make, window, 10 * index))
            for index, window in enumerate(shape.sliding_windows)
        )
        generator = torch.Generator().manual_seed(2)
        # A row for each token of the test: what they embed to is all that tells them apart.
        embedding = DenseWeight(torch.randn(sum(LENGTHS), shape.hidden_size, generator=generator))
        norm = 1 + 0.1 * torch.randn(shape.hidden_size, generator=generator)
        self.weights = DecoderWeights(
            ops.prepare_weight(embedding), layers, norm, 1e-5, torch.float32, shape.embedding_scale
        )

    def caches(self) -> list[LayerKVCache]:
        spec = KVCacheSpec(LayerKind.FULL, self.shape.num_kv_heads, self.shape.head_dim)
        shapes = self.ops.kv_cache_shape(spec, NUM_BLOCKS, BLOCK_SIZE)
        return [
            LayerKVCache(*(torch.full(s, torch.nan).to(self.kv_dtype) for s in shapes), *self.kv_scales)
            for _ in self.shape.sliding_windows
        ]

    def run(
        self, steps: Sequence[Sequence[Chunk]], inputs: dict[int, Tensor], *, composed: bool = False
    ) -> dict[int, Tensor]:
        """Return each request's rows of all its tokens, in order; keyed by first block."""
        caches = self.caches()
        run = Ops.decoder if composed else type(self.ops).decoder
        rows: dict[int, list[Tensor]] = {}
        for chunks in steps:
            ids = torch.cat([inputs[c.block_ids[0]][c.start : c.start + c.num_tokens] for c in chunks])
            hidden = run(self.ops, ids, self.weights, caches, paged_step(chunks, BLOCK_SIZE))
            for chunk, part in zip(chunks, torch.split(hidden, [c.num_tokens for c in chunks]), strict=True):
                rows.setdefault(chunk.block_ids[0], []).append(part)
        return {request: torch.cat(parts) for request, parts in rows.items()}


def requests() -> tuple[list[list[int]], dict[int, Tensor]]:
    """Return the blocks of a few requests, and their token ids by first block."""
    blocks = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(1)).tolist()
    block_ids = [[blocks.pop() for _ in range(-(-length // BLOCK_SIZE))] for length in LENGTHS]
    token_ids = torch.split(torch.arange(sum(LENGTHS)), LENGTHS)
    return block_ids, {ids[0]: tokens for ids, tokens in zip(block_ids, token_ids, strict=True)}


def all_at_once(block_ids: list[list[int]]) -> list[list[Chunk]]:
    return [[Chunk(ids, 0, length) for ids, length in zip(block_ids, LENGTHS, strict=True)]]


def in_pieces(block_ids: list[list[int]]) -> list[list[Chunk]]:
    """Each request alone, cut into chunks of odd sizes and single tokens."""
    steps = []
    for ids, length in zip(block_ids, LENGTHS, strict=True):
        start = 0
        for size in (3, 1, 17, 1, 64, 64):
            if start < length:
                steps.append([Chunk(ids, start, min(size, length - start))])
                start += size
    return steps


@pytest.fixture(scope="module", params=[("auto", 1), ("auto", 3), ("portable", 2)], ids=str)
def ops(request: pytest.FixtureRequest) -> CpuOps:
    instruction_set, num_threads = request.param
    try:
        return CpuOps(num_threads, instruction_set)
    except LibraryMissing as exc:
        pytest.skip(str(exc))


def assert_same_bits(one: dict[int, Tensor], other: dict[int, Tensor]) -> None:
    assert one.keys() == other.keys()
    for request, rows in one.items():
        assert not rows.isnan().any()
        assert torch.equal(rows, other[request])


@pytest.mark.parametrize("layout", WEIGHTS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_decoder_has_the_bits_of_its_small_ops(ops: CpuOps, name: str, layout: str):
    decoder = Decoder(ops, SHAPES[name], WEIGHTS[layout])
    block_ids, inputs = requests()
    steps = all_at_once(block_ids)
    assert_same_bits(decoder.run(steps, inputs), decoder.run(steps, inputs, composed=True))


@pytest.mark.parametrize("layout", WEIGHTS)
@pytest.mark.parametrize("name", ["plain", "gate-within-panel", "pieces-of-a-row", "sliding", "gemma", "granite"])
def test_a_token_has_the_same_bits_however_its_step_is_made_up(ops: CpuOps, name: str, layout: str):
    decoder = Decoder(ops, SHAPES[name], WEIGHTS[layout])
    block_ids, inputs = requests()
    assert_same_bits(decoder.run(all_at_once(block_ids), inputs), decoder.run(in_pieces(block_ids), inputs))


def tame_dense(out_features: int, in_features: int, **more: int) -> DenseWeight:
    """Products that keep the size of their input, as trained ones do: rounding then stays what it is."""
    weight = random_dense(out_features, in_features, **more)
    return DenseWeight(weight.weight / in_features**0.5, weight.bias)


@pytest.mark.parametrize("name", SHAPES)
def test_dense_layers_agree_with_the_reference(ops: CpuOps, name: str):
    block_ids, inputs = requests()
    steps = all_at_once(block_ids)
    rows, expected = (
        Decoder(backend, SHAPES[name], tame_dense, torch.float32).run(steps, inputs)
        for backend in (ops, ReferenceOps())
    )
    for request, row in rows.items():
        # A head, a norm or a window that is off by one moves these numbers, which are around 1, by over 0.01.
        torch.testing.assert_close(row, expected[request], rtol=1e-4, atol=1e-4)


def test_parts_of_mixed_layouts_are_one_weight(ops: CpuOps):
    shape = Shape()

    def make(out_features: int, in_features: int, *, seed: int, has_bias: bool = False) -> StackedWeight:
        half = out_features // 2
        return StackedWeight(
            (
                random_int8(half, in_features, 16, has_minimum=True, has_bias=has_bias, seed=seed),
                random_dense(out_features - half, in_features, torch.float16, has_bias=has_bias, seed=seed),
            )
        )

    decoder = Decoder(ops, shape, make)
    block_ids, inputs = requests()
    steps = all_at_once(block_ids)
    assert_same_bits(decoder.run(steps, inputs), decoder.run(steps, inputs, composed=True))
    assert_same_bits(decoder.run(steps, inputs), decoder.run(in_pieces(block_ids), inputs))


@pytest.mark.parametrize("name", ["plain", "gate-within-panel", "pieces-of-a-row", "gemma"])
def test_permuted_input_channels_are_brought_into_order_first(ops: CpuOps, name: str):
    """Down's input is then complete before it is quantized: no tile computes gates and quantizes them."""
    decoder = Decoder(ops, SHAPES[name], lambda out, size, **more: permuted(random_int4(out, size, **more)))
    block_ids, inputs = requests()
    steps = all_at_once(block_ids)
    assert_same_bits(decoder.run(steps, inputs), decoder.run(steps, inputs, composed=True))
    assert_same_bits(decoder.run(steps, inputs), decoder.run(in_pieces(block_ids), inputs))


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_scaled_8_bit_keys_and_values_change_no_bit_of_that(ops: CpuOps, kv_dtype: torch.dtype):
    decoder = Decoder(ops, SHAPES["gemma"], tame_dense, kv_dtype, kv_scales=(0.3, 0.7))
    block_ids, inputs = requests()
    steps = all_at_once(block_ids)
    assert_same_bits(decoder.run(steps, inputs), decoder.run(steps, inputs, composed=True))
    assert_same_bits(decoder.run(steps, inputs), decoder.run(in_pieces(block_ids), inputs))


def test_another_pool_of_blocks_is_noticed(ops: CpuOps):
    decoder = Decoder(ops, Shape(), random_dense)
    block_ids, inputs = requests()
    first = decoder.run(all_at_once(block_ids), inputs)
    assert_same_bits(first, decoder.run(all_at_once(block_ids), inputs))
