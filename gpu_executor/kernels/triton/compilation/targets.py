"""The devices that kernels are compiled for ahead of time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture, as the compiler and its limits are concerned.

    Attributes:
        name: "sm_90", "gfx942".
        backend: Triton's, "cuda" or "hip".
        architecture: as that backend names it: 90, "gfx942".
        warp_size: threads that run in step.
        max_shared_kib: shared memory that one program can have.
        matrix_instructions: how the instructions of its matrix units begin in assembly; none if Triton uses none.
    """

    name: str
    backend: str
    architecture: int | str
    warp_size: int
    max_shared_kib: int
    matrix_instructions: tuple[str, ...]


def _nvidia(capability: int, max_shared_kib: int, *matrix_instructions: str) -> Target:
    return Target(f"sm_{capability}", "cuda", capability, 32, max_shared_kib, matrix_instructions)


def _amd(architecture: str, max_shared_kib: int) -> Target:
    return Target(architecture, "hip", architecture, 64, max_shared_kib, ("v_mfma",))


# Shared memory: "Maximum amount of shared memory per thread block" of the CUDA programming guide's table of compute
# capabilities; AMD's LDS per workgroup of the CDNA instruction set references.
TARGETS = {
    target.name: target
    for target in (
        _nvidia(70, 96),  # V100. Triton 3.3 gave its matrix units up, and T4's: products are scalar multiply-adds.
        _nvidia(75, 64),  # T4
        _nvidia(80, 163, "mma.sync"),  # A100
        _nvidia(86, 99, "mma.sync"),  # A10
        _nvidia(89, 99, "mma.sync"),  # L40S
        _nvidia(90, 227, "wgmma.mma_async", "mma.sync"),  # H100, H200; mma.sync where a tile has fewer than 64 rows
        _nvidia(100, 227, "tcgen05.mma", "mma.sync"),  # B200
        _nvidia(120, 99, "mma.sync"),  # RTX 5090
        _amd("gfx90a", 64),  # MI250
        _amd("gfx942", 64),  # MI300
        _amd("gfx950", 160),  # MI350
    )
}

CHECKED_TARGETS = ("sm_80", "sm_89", "sm_90", "gfx942")
"""Every row must compile for these, without spills and with matrix instructions."""

OLD_TARGETS = ("sm_70", "sm_75")
"""Every row must compile for these; without matrix units a tile that is right for others may spill."""
