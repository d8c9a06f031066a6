"""Compiles the CPU kernels; everything else about the package is in pyproject.toml.

The library has a plain C interface and is loaded by ctypes: it needs no Python headers and serves every version of
Python. Each instruction set is one source file with compiler flags of its own, and the library picks among them when
it is loaded. Without a compiler the installation succeeds without it.

CXX names the compiler. PAGEWIRE_INSTRUCTION_SETS="avx2 avx512" builds these alone (and the portable kernels): a quicker
build, for a library that need not run elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

CSRC = Path("gpu_executor/kernels/cpu/csrc")
COMMON_FLAGS = [
    "-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-fvisibility-inlines-hidden",
    "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-psabi",
    # False alarms of gcc 12 within its own vector headers, and in loops over partial vectors.
    "-Wno-maybe-uninitialized", "-Wno-stringop-overflow",
    # Fused multiply-adds change a result's last bits: they are written where they are wanted, and are the same on
    # every path. Without errno a square root is one instruction.
    "-ffp-contract=off", "-fno-math-errno",
]  # fmt: skip

X86_64 = ("x86_64", "amd64")
ARM64 = ("aarch64", "arm64")
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
# gcc 12 warns of its own headers: their undefined vectors are meant to be (its bug 105593).
AVX512 += ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]


@dataclass(frozen=True)
class InstructionSet:
    """What isa/<name>.cpp is for and how it is compiled.

    Attributes:
        flags: the compiler's.
        machines: the architectures that have it; none: all.
        shares: the sets whose compiled kernels it uses beside its own.
    """

    flags: list[str]
    machines: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()


# By isa/<name>.cpp. The order is the linker's, see NativeBuild._link.
INSTRUCTION_SETS = {
    "portable": InstructionSet([]),
    "neon": InstructionSet([], ARM64),
    "neon_dot": InstructionSet(["-march=armv8.2-a+dotprod"], ARM64, shares=("neon",)),
    "avx2": InstructionSet(AVX2, X86_64),
    "avx512": InstructionSet(AVX512, X86_64),
    "avx512_vnni": InstructionSet([*AVX512, "-mavx512vnni"], X86_64, shares=("avx512",)),
    "amx": InstructionSet(
        [*AVX512, "-mavx512vnni", "-mamx-tile", "-mamx-int8"], X86_64, shares=("avx512", "avx512_vnni")
    ),
}


class NativeBuild:
    """One build of the library: objects under `temp`, those that are up to date are kept."""

    def __init__(self, temp: Path) -> None:
        self.temp = temp
        self.compiler = find_compiler()
        self.machine = platform.machine().lower()
        # Before the first file is compiled: a source that changes meanwhile leaves a library that is seen to be old.
        self.digest = source_digest(CSRC)

    def build(self, target: Path) -> None:
        """Compile what has changed, all files at a time, and put the library in its place."""
        sets = self._sets_to_build()
        defines = [f"-DPAGEWIRE_HAS_{name.upper()}=1" for name in sets]
        defines.append(f'-DPAGEWIRE_SOURCE_DIGEST="{self.digest}"')
        general = sorted(path for path in CSRC.rglob("*.cpp") if path.parent != CSRC / "isa")
        # The instruction sets take longest: they start first.
        jobs = [(CSRC / "isa" / f"{name}.cpp", INSTRUCTION_SETS[name].flags) for name in sets]
        jobs += [(path, defines if is_build_info(path) else []) for path in general]
        with ThreadPoolExecutor(max_workers=available_cpus()) as pool:
            objects = list(pool.map(lambda job: self._compile(*job), jobs))
        self._link([*objects[len(sets) :], *objects[: len(sets)]], target)

    def _sets_to_build(self) -> list[str]:
        """Return the instruction sets that are asked for and known here, and those whose kernels they share."""
        asked = os.environ.get("PAGEWIRE_INSTRUCTION_SETS", "all").split()
        wanted = {"portable", *(INSTRUCTION_SETS if asked == ["all"] else asked)}
        for name in asked:
            wanted.update(INSTRUCTION_SETS[name].shares if name in INSTRUCTION_SETS else ())
        sets: list[str] = []
        for name, instruction_set in INSTRUCTION_SETS.items():
            if name in wanted and all(shared in sets for shared in instruction_set.shares) and self._is_known(name):
                sets.append(name)
        return sets

    def _is_known(self, name: str) -> bool:
        """Say whether this machine's architecture and compiler know an instruction set."""
        instruction_set = INSTRUCTION_SETS[name]
        if instruction_set.machines and self.machine not in instruction_set.machines:
            return False
        flags = instruction_set.flags
        probe = [*self.compiler, *flags, "-x", "c++", "-fsyntax-only", "-"]
        known = run(probe, source="int x;").returncode == 0
        if not known:
            report(f"{self.compiler[0]} does not know {' '.join(flags)}: built without the kernels for {name}\n")
        return known

    def _compile(self, source: Path, flags: list[str]) -> Path:
        target = self.temp / source.relative_to(CSRC).with_suffix(".o")
        command = [*self.compiler, *COMMON_FLAGS, *flags, "-I", str(CSRC), "-c", str(source)]
        recipe = target.with_suffix(".command")
        if is_current(target, recipe, command):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_suffix(f".{os.getpid()}.o")
        compile_or_fail(
            [*command, "-MMD", "-MF", str(target.with_suffix(".d")), "-MT", str(target), "-o", str(scratch)]
        )
        scratch.replace(target)
        recipe.write_text("\n".join(command))
        return target

    def _link(self, objects: list[Path], target: Path) -> None:
        """Link the objects, those of narrower instruction sets first.

        An inline function that several objects hold exists once in the library: the first object's. So it never
        contains instructions that only some of the CPUs which call it have.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        # A process may have the old library mapped: it keeps the old file.
        scratch = target.with_name(f"{target.name}.{os.getpid()}")
        shared = ["-dynamiclib"] if sys.platform == "darwin" else ["-shared", "-Wl,-z,defs"]
        compile_or_fail([*self.compiler, *shared, "-pthread", "-o", str(scratch), *map(str, objects)])
        scratch.replace(target)


def source_digest(folder: Path) -> str:
    """Return the digest of all sources; kernels/cpu/native_library.py computes it alike."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".cpp", ".h", ".inl")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def is_build_info(path: Path) -> bool:
    """Say whether a source is the one that holds the digest and the list of instruction sets."""
    return path.name == "build_info.cpp"


def is_current(target: Path, recipe: Path, command: list[str]) -> bool:
    """Say whether an object was made by this command from files that have not changed since."""
    depends = target.with_suffix(".d")
    if not (target.exists() and recipe.exists() and depends.exists()) or recipe.read_text() != "\n".join(command):
        return False
    sources = re.sub(r"\\\n", " ", depends.read_text().partition(": ")[2]).split()
    made = target.stat().st_mtime_ns
    return all(Path(source).exists() and Path(source).stat().st_mtime_ns < made for source in sources)


def find_compiler() -> list[str]:
    """Return the C++ compiler's command: CXX, or the first of the usual names.

    Raises:
        CompileError: there is none.
    """
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise CompileError("no C++ compiler (c++, g++, clang++): install one, or name it in CXX")


def available_cpus() -> int:
    """Return how many files may be compiled at a time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(command: list[str], source: str = "") -> subprocess.CompletedProcess[str]:
    """Run the compiler.

    Raises:
        CompileError: it could not be started.
    """
    try:
        return subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    except OSError as exc:
        raise CompileError(f"{command[0]} can't be run: {exc.strerror}") from exc


def compile_or_fail(command: list[str]) -> None:
    """Run the compiler; what it prints goes to the build's output.

    Raises:
        CompileError: it failed, or could not be started.
    """
    done = run(command)
    if done.returncode:
        raise CompileError(f"exit code {done.returncode} of {shlex.join(command)}\n{done.stdout}{done.stderr}")
    report(done.stdout + done.stderr)


def report(text: str) -> None:
    """Write to the build's output."""
    sys.stdout.write(text)
    sys.stdout.flush()


class BuildKernels(build_ext):
    """Builds the library with `NativeBuild` instead of the compiler commands that Python was built with."""

    def get_ext_filename(self, fullname: str) -> str:
        # No part of Python's binary interface is used, so none is named.
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext: Extension) -> None:
        NativeBuild(Path(self.build_temp)).build(Path(self.get_ext_fullpath(ext.name)))


class PlatformWheel(bdist_wheel):
    """Tags the wheel for the platform, and for any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[Extension("pagewire.gpu_executor.kernels.cpu._native", sources=[], optional=True)],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
)
