"""What a GPU and the libraries beside it must be, checked before a model is loaded onto it.

Below a floor the start is refused, with the device and the least that would do. Outside of what this version was tested
with it goes on, and says so.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass

import torch

from pagewire.ipc.errors import ConfigError

# Triton's compiler goes down to here (checked by compiling every kernel; tools.compile_kernels), and V100s are in use.
LEAST_CAPABILITY = (7, 0)
# Below, Triton has no matrix instructions: products run as scalar multiply-adds, right and slow. bfloat16 is software.
MATRIX_CAPABILITY = (8, 0)
LEAST_VERSIONS = {"torch": (2, 6), "Triton": (3, 3), "CUDA": (12, 0), "ROCm": (6, 2)}
# (first, last) minor version. CUDA and ROCm mean what torch was built for.
TESTED_VERSIONS = {"torch": ((2, 13), (2, 13)), "Triton": ((3, 7), (3, 9))}  # torch 2.13 for GPUs brings Triton 3.7
# AMD devices with matrix instructions and native bfloat16, by the architecture's name; kernels are compiled for gfx942.
MATRIX_ARCHITECTURES = ("gfx90a", "gfx942", "gfx950")


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What decides whether a GPU can be used.

    Attributes:
        name: "NVIDIA H200".
        capability: compute capability, (major, minor); ROCm has numbers of its own there that mean nothing here.
        architecture: "gfx942" on ROCm, else None.
        built_for: architectures that this torch has code for: "sm_90", "compute_120" (for all newer ones), "gfx942".
        versions: "torch", "Triton" if installed, and "CUDA" or "ROCm" -> version as its owner writes it.
    """

    name: str
    capability: tuple[int, int]
    architecture: str | None
    built_for: tuple[str, ...]
    versions: dict[str, str]

    @property
    def has_matrix_instructions(self) -> bool:
        """Whether Triton's products use the device's matrix units."""
        if self.architecture is not None:
            return self.architecture in MATRIX_ARCHITECTURES
        return self.capability >= MATRIX_CAPABILITY

    @property
    def has_bfloat16(self) -> bool:
        """Whether the device computes in bfloat16 itself; else it is widened in software, slower than float32."""
        return self.has_matrix_instructions  # they came together, with both makers


def read_device_facts(index: int) -> DeviceFacts:
    """Ask torch about a GPU.

    Args:
        index: its number among those that the process may see.
    """
    properties = torch.cuda.get_device_properties(index)
    versions = {"torch": str(torch.__version__)}
    if torch.version.hip is not None:
        versions["ROCm"] = torch.version.hip
    elif torch.version.cuda is not None:
        versions["CUDA"] = torch.version.cuda
    if (triton := installed_triton()) is not None:
        versions["Triton"] = triton
    is_rocm = torch.version.hip is not None
    return DeviceFacts(
        name=properties.name,
        capability=(properties.major, properties.minor),
        architecture=properties.gcnArchName.partition(":")[0] if is_rocm else None,  # gfx942:sramecc+:xnack-
        built_for=tuple(torch.cuda.get_arch_list()),
        versions=versions,
    )


def installed_triton() -> str | None:
    """Return Triton's version without importing it; None if it is not installed."""
    for distribution in ("triton", "pytorch-triton-rocm", "triton-rocm"):  # torch's own builds have other names
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def refusal(facts: DeviceFacts) -> str | None:
    """Return why a GPU can't be used, with the remedy; None if it can."""
    if facts.architecture is None and facts.capability < LEAST_CAPABILITY:
        return (
            f"{facts.name} has compute capability {_dotted(facts.capability)}, and the GPU kernels need at least"
            f" {_dotted(LEAST_CAPABILITY)}: choose another GPU by CUDA_VISIBLE_DEVICES, or --device cpu"
        )
    if not _has_code_for(facts):
        mine = facts.architecture or f"sm_{facts.capability[0]}{facts.capability[1]}"
        return (
            f"{facts.name} is {mine}, and torch {facts.versions['torch']} was built without code for it (it has"
            f" {', '.join(facts.built_for)}): install a build of torch that has, or choose --device cpu"
        )
    for library, version in facts.versions.items():
        least = LEAST_VERSIONS[library]
        if _minor_version(version) < least:
            return (
                f"{library} {version} is too old for {facts.name} here: {_dotted(least)} is the least"
                f"{_whose(library)}; update torch, or choose --device cpu"
            )
    return None


def check_requirements(facts: DeviceFacts) -> list[str]:
    """Return what an operator should know about running on this GPU, one line each; often nothing.

    Raises:
        ConfigError: it can't be used.
    """
    reason = refusal(facts)
    if reason is not None:
        raise ConfigError(reason, param="device")
    lines = []
    if not facts.has_matrix_instructions:
        what = facts.architecture or f"compute capability {_dotted(facts.capability)}"
        lines.append(
            f"{facts.name} ({what}) is slow here: Triton has no matrix instructions for it; they begin with compute"
            f" capability {_dotted(MATRIX_CAPABILITY)}, or {', '.join(MATRIX_ARCHITECTURES)}"
        )
    for library, (first, last) in TESTED_VERSIONS.items():
        version = facts.versions.get(library)
        if version is not None and not first <= _minor_version(version) <= last:
            tested = _dotted(first) if first == last else f"{_dotted(first)} to {_dotted(last)}"
            lines.append(f"{library} {version} is outside of what this version was tested with ({tested})")
    return lines


def _has_code_for(facts: DeviceFacts) -> bool:
    """Say whether torch's own kernels run: a binary for this major version and no newer minor one, or PTX."""
    if not facts.built_for:  # torch does not say
        return True
    if facts.architecture is not None:
        return any(entry.partition(":")[0] == facts.architecture for entry in facts.built_for)
    major, minor = facts.capability
    for entry in facts.built_for:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", entry)
        if match is None:
            continue
        kind, built, suffix = match[1], (int(match[2]), int(match[3])), match[4]
        if suffix == "a":  # the features of exactly this architecture
            fits = built == facts.capability
        elif kind == "sm" or suffix == "f":
            fits = built[0] == major and built[1] <= minor
        else:
            fits = built <= facts.capability
        if fits:
            return True
    return False


def _minor_version(version: str) -> tuple[int, int]:
    """Return (major, minor) of "2.13.0+cu130"; what can't be read counts as new."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match is not None else (10**6, 0)


def _whose(library: str) -> str:
    return " that torch may be built for" if library in ("CUDA", "ROCm") else ""


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
