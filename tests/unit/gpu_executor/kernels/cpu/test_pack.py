"""Packing keeps every weight: rows that are looked up in panels are those of the canonical matrix."""

from __future__ import annotations

import pytest
import torch

from pagewire.gpu_executor.kernels.cpu.engine import NativeEngine
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing
from pagewire.gpu_executor.kernels.cpu.packed_weight import pack_weight
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from tests.support.weights import permuted, random_dense, random_int4, random_int8

WEIGHTS = {
    "float32": random_dense,
    "float16": lambda out, size: random_dense(out, size, torch.float16),
    "bfloat16": lambda out, size: random_dense(out, size, torch.bfloat16),
    "int4": random_int4,
    "int8": random_int8,
    "int8-minimum": lambda out, size: random_int8(out, size, has_minimum=True),
    "int8-half": lambda out, size: random_int8(out, size, 16),
    "int8-half-minimum": lambda out, size: random_int8(out, size, 16, has_minimum=True),
    "int4-permuted": lambda out, size: permuted(random_int4(out, size)),
    "int8-permuted": lambda out, size: permuted(random_int8(out, size)),
}


@pytest.fixture(scope="module")
def engine() -> NativeEngine:
    try:
        return NativeEngine(2)
    except LibraryMissing as exc:
        pytest.skip(str(exc))


# Whole panels and the rest of one; input channels of one group and of several, some of them padded.
@pytest.mark.parametrize(("out_features", "in_features"), [(1, 32), (16, 64), (37, 576), (100, 96)])
@pytest.mark.parametrize("layout", WEIGHTS)
def test_packed_rows_are_the_canonical_ones(engine, layout, out_features, in_features):
    check_rows(engine, WEIGHTS[layout](out_features, in_features))


@pytest.mark.parametrize("layout", ["float32", "float16", "bfloat16", "int4", "int4-permuted"])
@pytest.mark.parametrize("in_features", [1, 31, 33, 70])
def test_packing_pads_the_last_group(engine, layout, in_features):
    check_rows(engine, WEIGHTS[layout](20, in_features))


def check_rows(engine, weight):
    packed = pack_weight(engine, weight)
    # Backwards, so that a row's place in the result is not its place in the matrix.
    ids = torch.arange(weight.out_features - 1, -1, -1)
    rows = torch.full((len(ids), weight.in_features), torch.nan)
    engine.call("pagewire_embedding", packed.view, ids.data_ptr(), len(ids), rows.data_ptr())
    # A scale times a code, plus a minimum: rounded once or twice.
    torch.testing.assert_close(rows, dequantize(weight)[ids].float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("layout", WEIGHTS)
def test_packed_weight_keeps_its_size(engine, layout):
    """In bits a weight, with the scales and minima of its group."""
    bits = {
        "float32": 32, "float16": 16, "bfloat16": 16, "int4": 5,
        "int8": 8.5, "int8-minimum": 9, "int8-half": 9, "int8-half-minimum": 10,
        "int4-permuted": 5, "int8-permuted": 8.5,
    }  # fmt: skip
    assert pack_weight(engine, WEIGHTS[layout](64, 96)).num_bytes == 64 * 96 * bits[layout] / 8
