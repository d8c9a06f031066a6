"""The native library's engine: kernels of one instruction set on one pool of threads."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import c_int32, c_int64
from typing import NamedTuple

from pagewire.ipc.errors import ConfigError, EngineError, MachineError

from .native_library import load_library
from .panel_memory import PanelMemory


class PhaseTime(NamedTuple):
    """How long the phases of one kind took, in nanoseconds, and how many there were."""

    nanoseconds: int
    num_phases: int


class NativeEngine:
    """Owns the handle. Calls on it come from one thread at a time.

    Args:
        num_threads: that a call runs on, the caller's included.
        instruction_set: "auto": the best that this CPU has, or the name of one.

    Raises:
        LibraryMissing: there is no compiled library.
        ConfigError: this build or this CPU lacks the instruction set.
        MachineError: the library was made from other sources than those beside it, or the system gives no more
            threads or memory.
    """

    def __init__(self, num_threads: int, instruction_set: str = "auto") -> None:
        self.library = load_library()
        handle = self.library.pagewire_create(instruction_set.encode(), num_threads)
        if handle is None:
            raise _creation_error(num_threads, instruction_set)
        self.handle: int = handle
        self.num_threads = num_threads
        self.panel_memory = PanelMemory()
        self.instruction_set: str = self.library.pagewire_kernels(handle).decode()
        self._finalizer = weakref.finalize(self, self.library.pagewire_destroy, handle)
        self._phase_names = _phase_names(self.library)

    def call(self, function: str, *arguments: object) -> None:
        """Call one of the ops of csrc/capi.h, which start with the engine and may lack memory.

        Raises:
            EngineError: there was no memory for its work space.
        """
        if getattr(self.library, function)(self.handle, *arguments):
            raise EngineError(f"no memory for the work space of {function}: lower --max-num-batched-tokens")

    def profile_start(self) -> None:
        """Time the phases of all calls from now on."""
        self.library.pagewire_profile_start(self.handle)

    def profile_read(self) -> dict[str, PhaseTime]:
        """Return the time of each kind of phase since the start or the last read, but for kinds that did not occur."""
        count = len(self._phase_names)
        nanoseconds, num_phases = (c_int64 * count)(), (c_int64 * count)()
        self.library.pagewire_profile_read(self.handle, nanoseconds, num_phases)
        times = zip(self._phase_names, map(PhaseTime, nanoseconds, num_phases), strict=True)
        return {name: time for name, time in times if time.num_phases}

    def profile_stop(self) -> None:
        """Time no phases any more."""
        self.library.pagewire_profile_stop(self.handle)


def _creation_error(num_threads: int, instruction_set: str) -> ConfigError | MachineError:
    here = [name for name, runs_here in instruction_sets() if runs_here]
    if instruction_set in ("auto", *here):
        return MachineError(
            f"The system gives no memory for the CPU kernels, or not the {num_threads} threads of --cpu-threads: lower "
            "it, or raise the limit on processes."
        )
    return ConfigError(
        f"--cpu-instruction-set {instruction_set!r} can't be used: this CPU runs {', '.join(here)}",
        param="cpu_instruction_set",
    )


def instruction_sets() -> list[tuple[str, bool]]:
    """Return the name of each instruction set that was built, the best first, and whether this CPU can run it."""
    library, runs_here, found = load_library(), c_int32(), list[tuple[str, bool]]()
    while (name := library.pagewire_built_kernels(len(found), ctypes.byref(runs_here))) is not None:
        found.append((name.decode(), bool(runs_here.value)))
    return found


def _phase_names(library: ctypes.CDLL) -> tuple[str, ...]:
    names = list[str]()
    while (name := library.pagewire_phase_name(len(names))) is not None:
        names.append(name.decode())
    return tuple(names)
