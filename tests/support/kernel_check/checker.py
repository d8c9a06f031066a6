"""Builds and runs check_kernels.cpp: the CPU kernels of instruction sets that the machine may lack.

Where it lacks one, the kernels are compiled against intrinsics in plain C++ (emulated/), without optimization: what
they compute is checked, not how fast. Where a cross compiler and an emulator are at hand, the real instructions are.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "gpu_executor/kernels/cpu/csrc"

# Of setup.py's, those that results depend on.
COMMON_FLAGS = ("-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-Wno-unknown-pragmas", "-Wno-psabi")
GENERAL_SOURCES = ("kernels/attention_plan.cpp",)
TABLES = {
    "avx2": "kAvx2Kernels",
    "avx512": "kAvx512Kernels",
    "avx512_vnni": "kAvx512VnniKernels",
    "amx": "kAmxKernels",
    "neon": "kNeonKernels",
    "neon_dot": "kNeonDotKernels",
}


@dataclass(frozen=True)
class Toolchain:
    """How to build and run.

    Attributes:
        compiler: the C++ compiler's command.
        flags: for all files.
        flags_of: more flags, by instruction set.
        runner: what runs the program, before its name.
    """

    compiler: tuple[str, ...]
    flags: tuple[str, ...] = ()
    flags_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    runner: tuple[str, ...] = ()


def emulated_toolchain() -> Toolchain | None:
    """Return the machine's own compiler with intrinsics in plain C++; None without one."""
    found = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    return None if found is None else Toolchain((found,), ("-O0", "-I", str(HERE / "emulated")))


def arm_toolchain() -> Toolchain | None:
    """Return a cross compiler for 64-bit ARM and the emulator of its programs; None if one is missing."""
    compiler, emulator = "aarch64-linux-gnu-g++", "qemu-aarch64"
    if not (shutil.which(compiler) and shutil.which(emulator)):
        return None
    return Toolchain(
        (compiler,), ("-O1", "-static"), {"neon_dot": ("-march=armv8.2-a+dotprod",)}, (emulator, "-cpu", "max")
    )


def build_checker(toolchain: Toolchain, instruction_sets: Sequence[str], cache: Path) -> Path:
    """Compile the checker for some instruction sets; one that is in the cache, of the same sources, is taken.

    A set that shares another's kernels needs that one beside it.

    Raises:
        subprocess.CalledProcessError: the compiler failed.
    """
    program = cache / _digest(toolchain, instruction_sets)
    if program.exists():
        return program
    objects = program.with_suffix(".objects")
    objects.mkdir(parents=True, exist_ok=True)
    tables = " ".join(f"EACH({TABLES[name]})" for name in instruction_sets)
    jobs = [(CSRC / f"isa/{name}.cpp", toolchain.flags_of.get(name, ())) for name in ("portable", *instruction_sets)]
    jobs += [(CSRC / source, ()) for source in GENERAL_SOURCES]
    # The checker's own arithmetic is most of the work: it alone is worth optimizing.
    jobs += [(HERE / "check_kernels.cpp", ("-O1", f"-DPAGEWIRE_TABLES_UNDER_TEST(EACH)={tables}"))]

    def compile_one(job: tuple[Path, tuple[str, ...]]) -> Path:
        source, flags = job
        target = objects / f"{source.stem}.o"
        command = [*toolchain.compiler, *COMMON_FLAGS, *toolchain.flags, *flags, "-I", str(CSRC)]
        subprocess.run([*command, "-c", str(source), "-o", str(target)], check=True)
        return target

    with ThreadPoolExecutor(max_workers=2) as pool:
        compiled = list(pool.map(compile_one, jobs))
    linked = objects / "checker"
    subprocess.run([*toolchain.compiler, *toolchain.flags, *map(str, compiled), "-o", str(linked)], check=True)
    linked.replace(program)
    shutil.rmtree(objects)
    return program


def run_checker(toolchain: Toolchain, program: Path, instruction_set: str) -> subprocess.CompletedProcess[str]:
    """Check one instruction set; the output names what failed."""
    return subprocess.run(
        [*toolchain.runner, str(program), instruction_set], capture_output=True, text=True, check=False
    )


def _digest(toolchain: Toolchain, instruction_sets: Sequence[str]) -> str:
    digest = hashlib.sha256(repr((toolchain, instruction_sets)).encode())
    for folder in (CSRC, HERE):
        for path in sorted(path for path in folder.rglob("*") if path.suffix in (".cpp", ".h", ".inl")):
            digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:32]
