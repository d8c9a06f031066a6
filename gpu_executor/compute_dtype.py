"""Which dtype a model computes in, and which its weights are stored in."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch

from pagewire.checkpoint.model_config import ModelConfig
from pagewire.ipc.errors import ConfigError

from .kernels.ops import Ops

_BY_NAME = {
    "float32": torch.float32,
    "float": torch.float32,
    "float16": torch.float16,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}
# Instructions that multiply bf16 pairs: without them bf16 is widened to fp32 in software and is slower than fp32.
_NATIVE_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def resolve_dtype(requested: str, config: ModelConfig, device: torch.device, ops: Ops) -> torch.dtype | None:
    """Return the dtype of dense weights for a requested name; None: each weight as the checkpoint stores it.

    Activations have it too, unless the kernels keep them in float32 (`compute_dtype`). "auto" means: as stored, with
    kernels that keep activations in float32 and widen weights while they multiply; otherwise the checkpoint's own dtype
    on an accelerator (bfloat16 for fp32 and packed checkpoints), and float32 on a CPU, unless the checkpoint is bf16
    and the CPU has instructions for it.

    Args:
        requested: "auto", "float32", "float16" or "bfloat16"; "half" and "float" are other names of two of them.
        config: the checkpoint; its `dtype` decides for "auto".
        device: where the model will run.
        ops: the kernels.

    Raises:
        ConfigError: if the name is none of these.
    """
    if requested != "auto":
        dtype = _BY_NAME.get(requested)
        if dtype is None:
            raise ConfigError(f"dtype {requested!r} is unknown: use auto, float32, float16 or bfloat16", param="dtype")
        return dtype
    if ops.has_float32_activations:
        return None
    if device.type == "cpu":
        return torch.bfloat16 if config.dtype == "bfloat16" and cpu_has_native_bf16() else torch.float32
    return torch.float16 if config.dtype == "float16" else torch.bfloat16


def compute_dtype(weight_dtype: torch.dtype | None, ops: Ops) -> torch.dtype:
    """Return the dtype of activations: float32 if the kernels say so, else the dense weights'."""
    return torch.float32 if ops.has_float32_activations or weight_dtype is None else weight_dtype


def describe_dtypes(weight_dtype: torch.dtype | None, config: ModelConfig, ops: Ops) -> str:
    """Return what the model computes in, for people, and what its weights are stored in if that is something else."""
    computed = _name(compute_dtype(weight_dtype, ops))
    stored = config.dtype if weight_dtype is None or _keeps_packed(config, ops) else _name(weight_dtype)
    return computed if stored == computed else f"{computed} with {stored} weights"


def _keeps_packed(config: ModelConfig, ops: Ops) -> bool:
    return ops.keeps_quantized_weights and config.dtype == "quantized"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
