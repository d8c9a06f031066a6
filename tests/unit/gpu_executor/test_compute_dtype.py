from __future__ import annotations

import msgspec
import pytest
import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.compute_dtype import (
    compute_dtype,
    cpu_has_native_bf16,
    describe_dtypes,
    resolve_dtype,
)
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("stored", "on_cpu", "on_gpu"),
    [
        ("float32", torch.float32, torch.bfloat16),
        ("float16", torch.float32, torch.float16),
        ("quantized", torch.float32, torch.bfloat16),
        ("bfloat16", torch.bfloat16 if cpu_has_native_bf16() else torch.float32, torch.bfloat16),
    ],
)
def test_auto_follows_the_checkpoint_as_far_as_the_device_is_fast(
    stored: str, on_cpu: torch.dtype, on_gpu: torch.dtype
) -> None:
    config = msgspec.structs.replace(load_model_config(tiny_checkpoint()), dtype=stored)
    ops = select_ops("reference")
    assert resolve_dtype("auto", config, CPU, ops) == on_cpu
    assert resolve_dtype("auto", config, GPU, ops) == on_gpu
    assert resolve_dtype("half", config, CPU, ops) == torch.float16


def test_unknown_dtype_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"int4.*bfloat16"):
        resolve_dtype("int4", load_model_config(tiny_checkpoint()), CPU, select_ops("reference"))


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
    dtype = resolve_dtype(requested, config, CPU, ops)
    assert dtype == weights
    assert compute_dtype(dtype, ops) == torch.float32
    assert describe_dtypes(dtype, config, ops) == description
