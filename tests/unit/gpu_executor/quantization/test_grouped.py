from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.kernels.cpu.cpu_ops import CpuOps
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing
from pagewire.gpu_executor.kernels.layouts import (
    DenseWeight,
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    LinearWeight,
    StackedWeight,
)
from pagewire.gpu_executor.kernels.reference.dequantize import bias_of, dequantize
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.models.llama import LlamaForCausalLM
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.quantization.grouped import stack_rows
from pagewire.gpu_executor.weights import load_weights
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf
from tests.support.weights import random_fp8, random_int4, random_int8


class KeepingOps(ReferenceOps):
    """The reference, taking weights as they are stored, and counting what it prepares."""

    keeps_quantized_weights = True
    has_float32_activations = True

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[LinearWeight] = []
        self._inside = threading.Lock()

    def prepare_weight(self, weight: LinearWeight) -> LinearWeight:
        assert self._inside.acquire(blocking=False), "two threads prepare at once"
        self.prepared.append(weight)
        self._inside.release()
        return weight


def load(path: Path, ops: ReferenceOps, dtype: torch.dtype | None) -> LlamaForCausalLM:
    config = load_model_config(path)
    model = build_model(config, ops, dtype=dtype, device=torch.device("cpu"), max_model_len=64)
    load_weights(model, config)
    assert isinstance(model, LlamaForCausalLM)
    return model


def test_rows_of_one_layout_become_one_weight_and_others_are_stacked() -> None:
    shards = [
        random_int4(4, 96),
        random_int4(2, 96, seed=1),
        random_int8(3, 96),
        random_int8(5, 96, 16),
        random_int8(2, 96, 16, seed=1),
        random_int8(1, 96, has_minimum=True),
    ]
    expected = torch.cat([dequantize(shard) for shard in shards])
    bias = torch.arange(17.0)
    stacked = stack_rows(shards, bias)
    assert isinstance(stacked, StackedWeight)
    assert [part.out_features for part in stacked.parts] == [6, 3, 7, 1]
    assert (stacked.out_features, stacked.in_features) == (17, 96)
    assert torch.equal(dequantize(stacked), expected)
    stacked_bias = bias_of(stacked)
    assert stacked_bias is not None
    assert torch.equal(stacked_bias, bias)
    assert isinstance(stack_rows(shards[:2], None), Int4Weight)


def test_dense_shards_of_one_dtype_are_joined() -> None:
    shards = [DenseWeight(torch.full((2, 4), float(i)).to(dtype)) for i, dtype in enumerate([torch.half] * 2)]
    joined = stack_rows(shards, None)
    assert isinstance(joined, DenseWeight)
    assert joined.weight.tolist() == [[0.0] * 4] * 2 + [[1.0] * 4] * 2
    mixed = stack_rows([shards[0], DenseWeight(torch.ones(1, 4))], None)
    assert isinstance(mixed, StackedWeight)


@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q8_0", "Q5_1", "F16"])
def test_model_holds_the_same_values_as_an_unpacked_one(quant: str) -> None:
    path = tiny_gguf("llama", quant, embedding_quant="Q8_0", attention_bias=True).path
    ops = KeepingOps()
    kept, dense = load(path, ops, None), load(path, ReferenceOps(), torch.float32)
    assert len(ops.prepared) == 4 * len(kept.layers) + 2
    for mine, theirs in zip(kept.layers, dense.layers, strict=True):
        for a, b in (
            (mine.attention.qkv.weight, theirs.attention.qkv.weight),
            (mine.attention.output.weight, theirs.attention.output.weight),
            (mine.mlp.gate_up.weight, theirs.mlp.gate_up.weight),
            (mine.mlp.down.weight, theirs.mlp.down.weight),
        ):
            assert isinstance(a, Int4Weight | Int8Weight | DenseWeight)
            assert torch.equal(dequantize(a), dequantize(b))
        a_bias, b_bias = bias_of(mine.attention.qkv.weight), bias_of(theirs.attention.qkv.weight)
        assert a_bias is not None
        assert b_bias is not None
        assert torch.equal(a_bias, b_bias)
    assert torch.equal(dequantize(kept.output.weight), dequantize(dense.output.weight))
    ids = torch.tensor([5, 0, 511])
    reference = ReferenceOps()
    looked_up = (reference.embedding(ids, model.embedding.weight, torch.float32) for model in (kept, dense))
    assert torch.equal(*looked_up)


def test_shards_of_two_types_are_stacked_in_their_order() -> None:
    path = tiny_gguf("llama", "Q4_K", value_quant="Q6_K").path
    kept, dense = load(path, KeepingOps(), None), load(path, ReferenceOps(), torch.float32)
    for mine, theirs in zip(kept.layers, dense.layers, strict=True):
        qkv = mine.attention.qkv.weight
        assert isinstance(qkv, StackedWeight)
        assert [type(part) for part in qkv.parts] == [Int4Weight, Int8Weight]
        assert isinstance(mine.mlp.gate_up.weight, Int4Weight)
        # K-quants lose a rounding of their scales to fp16: see formats/gguf_grouped.py.
        expected = dequantize(theirs.attention.qkv.weight)
        torch.testing.assert_close(dequantize(qkv), expected, rtol=0, atol=float(2**-9 * expected.abs().max()))


@pytest.mark.parametrize(("quant", "value_quant"), [("Q4_K", "Q6_K"), ("Q5_1", "Q8_0"), ("Q4_0", "F16")])
def test_compiled_products_of_a_loaded_model_are_near_the_references(quant: str, value_quant: str) -> None:
    try:
        ops = CpuOps(num_threads=2)
    except LibraryMissing as exc:
        pytest.skip(str(exc))
    path = tiny_gguf("llama", quant, value_quant=value_quant, attention_bias=True).path
    model, reference = load(path, ops, None), load(path, ReferenceOps(), torch.float32)
    ids = torch.tensor([5, 0, 511])
    hidden = ReferenceOps().embedding(ids, reference.embedding.weight, torch.float32)
    looked_up = ops.embedding(ids, model.embedding.weight, torch.float32)
    torch.testing.assert_close(looked_up, hidden, rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(model.layers, reference.layers, strict=True):
        for a, b in ((mine.attention.qkv, theirs.attention.qkv), (mine.mlp.gate_up, theirs.mlp.gate_up)):
            expected = b.forward(hidden)
            assert (a.forward(hidden) - expected).norm() < 0.01 * expected.norm()


def test_sixteen_bit_checkpoint_stays_in_sixteen_bits_and_its_norms_are_widened() -> None:
    model = load(tiny_checkpoint("qwen3", dtype="bfloat16"), KeepingOps(), None)
    attention = model.layers[0].attention
    assert isinstance(attention.qkv.weight, DenseWeight)
    assert attention.qkv.weight.weight.dtype == torch.bfloat16
    assert attention.norm.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("tiles", "joined"),
    [
        ([(1, 256), (1, 256)], (1, 256)),  # a scale a row
        ([(128, 256), (256, 256)], (1, 256)),  # one a shard: each row gets its shard's
        ([(1, 256), (256, 256)], (1, 256)),
        ([(128, 128), (128, 128)], (128, 128)),
        ([(1, 128), (1, 128)], (1, 128)),
    ],
)
def test_fp8_shards_are_joined_with_scales_of_their_own(tiles: list[tuple[int, int]], joined: tuple[int, int]) -> None:
    shards = [random_fp8(rows, 256, *tile, seed=rows) for rows, tile in zip((128, 256), tiles, strict=True)]
    weight = stack_rows(shards, torch.arange(384.0))
    assert isinstance(weight, Fp8Weight)
    assert (weight.tile_rows, weight.tile_columns) == joined
    assert torch.equal(dequantize(weight), torch.cat([dequantize(shard) for shard in shards]))
    assert weight.bias is not None


def test_fp8_shards_that_end_within_a_tile_or_have_other_tiles_are_stacked() -> None:
    tiles = [(256, 128, 128), (100, 128, 128), (128, 128, 128), (40, 1, 128), (40, 1, 256)]
    shards = [random_fp8(rows, 256, *tile, seed=rows) for rows, *tile in tiles]
    weight = stack_rows(shards, None)
    assert isinstance(weight, StackedWeight)
    assert len(weight.parts) == 5
    assert torch.equal(dequantize(weight), torch.cat([dequantize(shard) for shard in shards]))


def test_one_fp8_shard_keeps_its_one_scale() -> None:
    weight = stack_rows([random_fp8(40, 96, 40, 96)], None)
    assert isinstance(weight, Fp8Weight)
    assert weight.scale.numel() == 1
