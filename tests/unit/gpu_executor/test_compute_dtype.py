from __future__ import annotations

import logging
from typing import Literal

import msgspec
import pytest
import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.quantization.quantization_config import QuantizationConfig
from pagewire.checkpoint.quantization.schemes import AWQScheme
from pagewire.gpu_executor.compute_dtype import (
    compute_dtype,
    describe_dtypes,
    dtype_name,
    resolve_dtype,
    resolve_kv_dtype,
)
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("stored", "on_cpu", "on_gpu"),
    [
        ("float32", torch.float32, torch.bfloat16),
        ("float16", torch.float32, torch.float16),
        ("quantized", torch.float32, torch.bfloat16),
        ("bfloat16", torch.bfloat16, torch.bfloat16),
    ],
)
def test_auto_follows_the_checkpoint_as_far_as_the_device_is_fast(
    stored: str, on_cpu: torch.dtype, on_gpu: torch.dtype
) -> None:
    config = msgspec.structs.replace(load_model_config(tiny_checkpoint()), dtype=stored)
    ops = select_ops("reference")
    assert resolve_dtype("auto", config, CPU, ops, has_bfloat16=True) == on_cpu
    assert resolve_dtype("auto", config, CPU, ops, has_bfloat16=False) == torch.float32
    assert resolve_dtype("auto", config, GPU, ops, has_bfloat16=True) == on_gpu
    assert resolve_dtype("half", config, CPU, ops, has_bfloat16=False) == torch.float16


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16", "quantized"])
def test_a_gpu_without_bfloat16_computes_in_float16_and_says_what_that_may_cost(
    stored: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = msgspec.structs.replace(load_model_config(tiny_checkpoint()), dtype=stored)
    with caplog.at_level(logging.WARNING):
        assert resolve_dtype("auto", config, GPU, ReferenceOps(), has_bfloat16=False) == torch.float16
    assert ("65,504" in caplog.text) == (stored == "bfloat16")


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_family_that_outgrows_float16_never_computes_in_it(family: Literal["gemma2", "gemma3"]) -> None:
    config = msgspec.structs.replace(load_model_config(tiny_checkpoint(family)), dtype="float16")
    assert resolve_dtype("auto", config, GPU, ReferenceOps(), has_bfloat16=True) == torch.bfloat16
    assert resolve_dtype("auto", config, GPU, ReferenceOps(), has_bfloat16=False) == torch.float32
    for device in (CPU, GPU):
        with pytest.raises(ConfigError, match=r"--dtype half: .*65,504.*bfloat16 or float32"):
            resolve_dtype("half", config, device, ReferenceOps(), has_bfloat16=True)


def test_bfloat16_asked_of_a_gpu_without_it_is_refused_with_the_remedy() -> None:
    config, ops = load_model_config(tiny_checkpoint()), ReferenceOps()
    with pytest.raises(ConfigError, match=r"--dtype bfloat16: .*8\.0.*give float16"):
        resolve_dtype("bfloat16", config, GPU, ops, has_bfloat16=False)
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype bfloat16: .*give float16"):
        resolve_kv_dtype("bfloat16", torch.float16, GPU, has_bfloat16=False)
    # A CPU converts what it has no instructions for.
    assert resolve_dtype("bfloat16", config, CPU, ops, has_bfloat16=False) == torch.bfloat16
    assert resolve_kv_dtype("bfloat16", torch.float32, CPU, has_bfloat16=False) == torch.bfloat16


def test_unknown_dtype_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"int4.*bfloat16"):
        resolve_dtype("int4", load_model_config(tiny_checkpoint()), CPU, ReferenceOps(), has_bfloat16=True)


@pytest.mark.parametrize(
    ("requested", "on_cpu", "on_gpu", "name"),
    [
        ("auto", torch.float16, torch.bfloat16, None),
        ("float32", torch.float32, torch.float32, "float32"),
        ("fp8", torch.float8_e4m3fn, torch.float8_e4m3fn, "fp8_e4m3"),
        ("fp8_e4m3", torch.float8_e4m3fn, torch.float8_e4m3fn, "fp8_e4m3"),
        ("fp8_e5m2", torch.float8_e5m2, torch.float8_e5m2, "fp8_e5m2"),
    ],
)
def test_the_cache_has_the_models_dtype_on_a_gpu_unless_another_is_asked_for(
    requested: str, on_cpu: torch.dtype, on_gpu: torch.dtype, name: str | None
) -> None:
    for device, expected in ((CPU, on_cpu), (GPU, on_gpu)):
        dtype = resolve_kv_dtype(requested, torch.bfloat16, device, has_bfloat16=True)
        assert dtype == expected
        assert name is None or dtype_name(dtype) == name


class Float32Ops(ReferenceOps):
    """Kernels that widen weights while they multiply, as compiled ones do."""

    has_float32_activations = True
    keeps_quantized_weights = True


@pytest.mark.parametrize(
    ("requested", "stored", "weights", "description"),
    [
        ("auto", "bfloat16", None, "float32 with bfloat16 weights"),
        ("auto", "float32", None, "float32"),
        ("auto", "quantized", None, "float32 with quantized weights"),
        ("half", "float32", torch.float16, "float32 with float16 weights"),
        ("half", "quantized", torch.float16, "float32 with quantized weights"),
    ],
)
def test_kernels_with_float32_activations_keep_weights_as_they_are_stored(
    requested: str, stored: str, weights: torch.dtype | None, description: str
) -> None:
    config, ops = msgspec.structs.replace(load_model_config(tiny_checkpoint()), dtype=stored), Float32Ops()
    dtype = resolve_dtype(requested, config, CPU, ops, has_bfloat16=True)
    assert dtype == weights
    assert compute_dtype(dtype, ops) == torch.float32
    assert describe_dtypes(dtype, config, ops) == description


def test_type_of_a_packed_gguf_file_is_named() -> None:
    config = load_model_config(tiny_gguf("llama", "Q4_1", embedding_quant="Q8_0").path)
    dtype = resolve_dtype("auto", config, CPU, Float32Ops(), has_bfloat16=True)
    assert describe_dtypes(dtype, config, Float32Ops()) == "float32 with Q4_1 weights"


@pytest.mark.parametrize(
    ("ops", "description"),
    [
        (Float32Ops(), "float32 with 4-bit awq weights"),
        (ReferenceOps(), "float32, weights unpacked from 4-bit awq"),
    ],
)
def test_packing_of_the_weights_is_named(ops: ReferenceOps, description: str) -> None:
    quantization = QuantizationConfig(method="awq", default=AWQScheme(group_size=128))
    config = msgspec.structs.replace(load_model_config(tiny_checkpoint()), quantization=quantization)
    dtype = resolve_dtype("auto", config, CPU, ops, has_bfloat16=True)
    assert describe_dtypes(dtype, config, ops) == description
