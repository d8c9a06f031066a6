"""Which dtype a model computes in, which its weights are stored in, and which its keys and values."""

from __future__ import annotations

import functools
import logging
import platform
from pathlib import Path

import torch

from pagewire.checkpoint.model_config import ModelConfig
from pagewire.checkpoint.quantization.describe import describe_quantization
from pagewire.ipc.errors import ConfigError

from .kernels.ops import Ops

logger = logging.getLogger(__name__)

_BY_NAME = {
    "float32": torch.float32,
    "float": torch.float32,
    "float16": torch.float16,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}
# What `ModelConfig.dtype` may name, but for "quantized".
CHECKPOINT_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_KV_DTYPES = {
    **CHECKPOINT_DTYPES,
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
# Families whose activations outgrow float16: their residual stream passes 65,504.
_NEED_MORE_THAN_FLOAT16 = frozenset({"Gemma2ForCausalLM", "Gemma3ForCausalLM"})
# Instructions that multiply bf16 pairs: without them bf16 is widened to fp32 in software and is slower than fp32.
_NATIVE_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def resolve_dtype(
    requested: str, config: ModelConfig, device: torch.device, ops: Ops, *, has_bfloat16: bool
) -> torch.dtype | None:
    """Return the dtype of dense weights for a requested name; None: each weight as the checkpoint stores it.

    Activations have it too, unless the kernels keep them in float32 (`compute_dtype`). "auto" means: as stored, with
    kernels that keep activations in float32 and widen weights while they multiply; otherwise the checkpoint's own dtype
    on an accelerator (bfloat16 for fp32 and packed checkpoints; float16 where there is no bfloat16), and float32 on a
    CPU, unless the checkpoint is bf16 and the CPU has instructions for it. Families that outgrow float16 get bfloat16
    or float32 in its place.

    Args:
        requested: "auto", "float32", "float16" or "bfloat16"; "half" and "float" are other names of two of them.
        config: the checkpoint; its `dtype` decides for "auto".
        device: where the model will run.
        ops: the kernels.
        has_bfloat16: whether that device multiplies bf16 in hardware.

    Raises:
        ConfigError: if the name is none of these, or names what a GPU or the model can't compute in.
    """
    is_on_cpu = device.type == "cpu"
    outgrows_float16 = config.architecture in _NEED_MORE_THAN_FLOAT16
    if requested != "auto":
        dtype = _BY_NAME.get(requested)
        if dtype is None:
            raise ConfigError(f"dtype {requested!r} is unknown: use auto, float32, float16 or bfloat16", param="dtype")
        if not is_on_cpu:
            _check_bfloat16(f"--dtype {requested}", dtype, "dtype", has_bfloat16=has_bfloat16)
        if dtype == torch.float16 and outgrows_float16 and not ops.has_float32_activations:
            raise ConfigError(
                f"--dtype {requested}: activations of {config.architecture} pass 65,504, beyond which float16 has no "
                "numbers; give bfloat16 or float32.",
                param="dtype",
            )
        return dtype
    if ops.has_float32_activations:
        return None
    if is_on_cpu:
        return torch.bfloat16 if config.dtype == "bfloat16" and has_bfloat16 else torch.float32
    if config.dtype == "float16" and not outgrows_float16:
        return torch.float16
    if has_bfloat16:
        return torch.bfloat16
    if outgrows_float16:
        return torch.float32
    if config.dtype == "bfloat16":
        logger.warning(
            "the model's bfloat16 becomes float16, since this GPU has none: numbers beyond 65,504 become infinite "
            "(--dtype float32 has no such limit, and takes twice the memory)"
        )
    return torch.float16


def resolve_kv_dtype(
    requested: str, model_dtype: torch.dtype, device: torch.device, *, has_bfloat16: bool
) -> torch.dtype:
    """Return the dtype of cached keys and values; "auto" is float16 on a CPU, else the model's; "fp8" is e4m3.

    On a CPU the cache is read far more often than it is written, and half the bytes is half the time.

    Args:
        requested: "auto", the name of a float dtype, "fp8", "fp8_e4m3" or "fp8_e5m2".
        model_dtype: of activations.
        device: where the cache lies.
        has_bfloat16: whether that device multiplies bf16 in hardware.

    Raises:
        ConfigError: the device can't keep such a cache.
    """
    if requested == "auto":
        return torch.float16 if device.type == "cpu" else model_dtype
    dtype = _KV_DTYPES[requested]
    if device.type != "cpu":
        _check_bfloat16(f"--kv-cache-dtype {requested}", dtype, "kv_cache_dtype", has_bfloat16=has_bfloat16)
    return dtype


def compute_dtype(weight_dtype: torch.dtype | None, ops: Ops) -> torch.dtype:
    """Return the dtype of activations: float32 if the kernels say so, else the dense weights'."""
    return torch.float32 if ops.has_float32_activations or weight_dtype is None else weight_dtype


def describe_dtypes(weight_dtype: torch.dtype | None, config: ModelConfig, ops: Ops) -> str:
    """Return what the model computes in, for people, and what its weights are stored in if that is something else."""
    computed = dtype_name(compute_dtype(weight_dtype, ops))
    if config.quantization is not None:
        stored = describe_quantization(config.quantization)
        is_kept = ops.keeps_quantized_weights
        return f"{computed} with {stored} weights" if is_kept else f"{computed}, weights unpacked from {stored}"
    is_packed = config.dtype == "quantized" and ops.keeps_quantized_weights
    stored = (config.packed_type or config.dtype) if weight_dtype is None or is_packed else dtype_name(weight_dtype)
    return computed if stored == computed else f"{computed} with {stored} weights"


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name as flags spell it: "bfloat16", "fp8_e4m3"."""
    name = str(dtype).removeprefix("torch.")
    return {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}.get(name, name)


def _check_bfloat16(flag: str, dtype: torch.dtype, param: str, *, has_bfloat16: bool) -> None:
    if dtype == torch.bfloat16 and not has_bfloat16:
        raise ConfigError(
            f"{flag}: this GPU has no bfloat16, which NVIDIA's have from compute capability 8.0 on; give float16.",
            param=param,
        )


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
