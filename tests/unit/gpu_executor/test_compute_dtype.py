from __future__ import annotations

import msgspec
import pytest
import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.compute_dtype import cpu_has_native_bf16, resolve_dtype
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
    assert resolve_dtype("auto", config, CPU) == on_cpu
    assert resolve_dtype("auto", config, GPU) == on_gpu
    assert resolve_dtype("half", config, CPU) == torch.float16


def test_unknown_dtype_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"int4.*bfloat16"):
        resolve_dtype("int4", load_model_config(tiny_checkpoint()), CPU)
