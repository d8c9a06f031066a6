"""Which dtype a model computes in."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch

from pagewire.checkpoint.model_config import ModelConfig
from pagewire.ipc.errors import ConfigError

_BY_NAME = {
    "float32": torch.float32,
    "float": torch.float32,
    "float16": torch.float16,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}
# Instructions that multiply bf16 pairs: without them bf16 is widened to fp32 in software and is slower than fp32.
_NATIVE_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def resolve_dtype(requested: str, config: ModelConfig, device: torch.device) -> torch.dtype:
    """Return the dtype of weights and activations for a requested name.

    "auto" means the checkpoint's own dtype on an accelerator (bfloat16 for fp32 and packed checkpoints), and float32 on
    a CPU, unless the checkpoint is bf16 and the CPU has instructions for it.

    Args:
        requested: "auto", "float32", "float16" or "bfloat16"; "half" and "float" are other names of two of them.
        config: the checkpoint; its `dtype` decides for "auto".
        device: where the model will run.

    Raises:
        ConfigError: if the name is none of these.
    """
    if requested != "auto":
        dtype = _BY_NAME.get(requested)
        if dtype is None:
            raise ConfigError(f"dtype {requested!r} is unknown: use auto, float32, float16 or bfloat16", param="dtype")
        return dtype
    if device.type == "cpu":
        return torch.bfloat16 if config.dtype == "bfloat16" and cpu_has_native_bf16() else torch.float32
    return torch.float16 if config.dtype == "float16" else torch.bfloat16


@functools.cache
def cpu_has_native_bf16() -> bool:
    """Say whether this CPU multiplies bf16 in hardware (AVX-512 BF16, AMX, or Arm BF16)."""
    if platform.system() != "Linux":
        return False
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("flags", "features"):
            return not _NATIVE_BF16_FLAGS.isdisjoint(value.split())
    return False
