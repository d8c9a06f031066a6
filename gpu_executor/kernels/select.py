"""Which backend runs the ops: the one place where it is chosen, once at start."""

from __future__ import annotations

import logging

import torch

from pagewire.ipc.errors import ConfigError

from .ops import Ops

logger = logging.getLogger(__name__)

_CPU = torch.device("cpu")
# Attention that pagewire does not compute itself: libraries for GPUs, whose splits follow the batch.
_FOREIGN_ATTENTION = ("flashinfer", "flash_attn")


def select_ops(
    name: str,
    *,
    device: torch.device = _CPU,
    num_threads: int = 1,
    instruction_set: str = "auto",
    is_batch_invariant: bool = False,
    attention_backend: str = "auto",
) -> Ops:
    """Return the backend of that name.

    A backend may need a compiled extension or a GPU's library: it is imported only when it is the one.

    Args:
        name: "cpu" (compiled kernels), "triton" (for GPUs; on a CPU interpreted, for tests), "reference" (plain torch,
            runs anywhere), or "auto": the fastest that the device has.
        device: where the model runs.
        num_threads: that compiled CPU kernels run on.
        instruction_set: of compiled CPU kernels; "auto": the best that the CPU has.
        is_batch_invariant: a row's bits must not depend on its batch. All backends but triton keep to that anyway.
        attention_backend: what computes attention in place of the backend's own; "auto": nothing.

    Raises:
        ConfigError: there is no such backend, it can't run here, or it does not have what is asked for.
        MachineError: the compiled kernels are older than their sources, or Triton can't launch kernels.
    """
    if name not in ("auto", "cpu", "triton", "reference"):
        raise ConfigError(f"kernels {name!r} are unknown: use auto, cpu, triton or reference", param="kernels")
    is_on_cpu = device.type == "cpu"
    if name == "cpu" and not is_on_cpu:
        raise ConfigError(
            f"--kernels cpu: they don't run on {device.type}; give --kernels triton, or --device cpu.", param="kernels"
        )
    runs_triton = name == "triton" or (name == "auto" and not is_on_cpu)
    if instruction_set != "auto" and (runs_triton or not is_on_cpu):
        raise ConfigError(
            f"--cpu-instruction-set {instruction_set}: only the compiled CPU kernels have one; leave it out, or give "
            "--device cpu and --kernels cpu",
            param="cpu_instruction_set",
        )
    _check_attention(attention_backend, device, runs_triton=runs_triton, is_batch_invariant=is_batch_invariant)
    if runs_triton:
        return _triton_ops(device, is_batch_invariant=is_batch_invariant, attention_backend=attention_backend)
    if is_on_cpu and name != "reference":
        ops = _cpu_ops(num_threads, instruction_set, is_wanted=name == "cpu")
        if ops is not None:
            return ops
    return _reference_ops(instruction_set)


def _check_attention(backend: str, device: torch.device, *, runs_triton: bool, is_batch_invariant: bool) -> None:
    """Refuse an attention backend that would not be used, or would break what was promised."""
    if backend == "auto":
        return
    if not runs_triton:
        raise ConfigError(
            f"--attention-backend {backend} belongs to the triton kernels; leave it out, or give --device cuda and "
            "--kernels triton.",
            param="attention_backend",
        )
    if backend not in _FOREIGN_ATTENTION:
        return
    if device.type == "cpu":
        raise ConfigError(
            f"--attention-backend {backend} needs a GPU; leave it out, or give --device cuda.",
            param="attention_backend",
        )
    if is_batch_invariant:
        raise ConfigError(
            f"--batch-invariant: {backend} splits its work by the batch, so that a request's bits follow its "
            "neighbours'; leave --attention-backend out (triton), or give up --batch-invariant.",
            param="attention_backend",
        )


def _triton_ops(device: torch.device, *, is_batch_invariant: bool, attention_backend: str) -> Ops:
    from .triton.backend import prepare_triton

    prepare_triton(interpreted=device.type == "cpu")
    from .triton.triton_ops import TritonOps

    if device.type == "cpu":
        logger.warning("the Triton kernels are interpreted on this CPU, thousands of times slower: for tests alone")
    else:
        from .triton.driver import start_driver

        start_driver()
    attention_backend = "triton" if attention_backend == "auto" else attention_backend
    return TritonOps(device, is_batch_invariant=is_batch_invariant, attention_backend=attention_backend)


def _cpu_ops(num_threads: int, instruction_set: str, *, is_wanted: bool) -> Ops | None:
    """Return the compiled kernels; None if there are none and nobody insists on them."""
    from .cpu.cpu_ops import CpuOps
    from .cpu.native_library import LibraryMissing

    try:
        return CpuOps(num_threads, instruction_set)
    except LibraryMissing as exc:
        if is_wanted:
            raise ConfigError(f"--kernels cpu: {exc}.", param="kernels") from exc
        logger.warning("running on the reference kernels, which are many times slower: %s", exc)
        return None


def _reference_ops(instruction_set: str) -> Ops:
    from .reference.reference_ops import ReferenceOps

    if instruction_set != "auto":
        raise ConfigError(
            f"--cpu-instruction-set {instruction_set}: the reference kernels know none; leave it out, or install the "
            "compiled kernels",
            param="cpu_instruction_set",
        )
    return ReferenceOps()
