"""The pool of threads, the choice of instructions and the profile, through the library's own interface."""

from __future__ import annotations

import threading

import pytest
import torch

from pagewire.gpu_executor.kernels.cpu.engine import NativeEngine, instruction_sets
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing
from pagewire.ipc.errors import ConfigError


def make_engine(num_threads: int, instruction_set: str = "auto") -> NativeEngine:
    try:
        return NativeEngine(num_threads, instruction_set)
    except LibraryMissing as exc:
        pytest.skip(str(exc))


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize(("num_phases", "num_tiles"), [(1, 1), (2000, 1), (2000, 3), (300, 64), (5, 0)])
def test_every_tile_of_every_phase_is_done_once(num_threads: int, num_phases: int, num_tiles: int):
    engine = make_engine(num_threads)
    for _ in range(3):
        done = engine.library.pagewire_run_empty_phases(engine.handle, num_phases, num_tiles)
        assert done == num_phases * num_tiles


def test_callers_take_turns():
    engine = make_engine(3)
    done: list[int] = []

    def call() -> None:
        done.extend(engine.library.pagewire_run_empty_phases(engine.handle, 200, 7) for _ in range(20))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert done == [1400] * 80


def test_pools_come_and_go():
    for _ in range(50):
        engine = make_engine(4)
        assert engine.library.pagewire_run_empty_phases(engine.handle, 3, 5) == 15


def test_the_portable_instructions_are_always_there():
    make_engine(1)
    assert instruction_sets()[-1] == ("portable", True)


def test_auto_is_the_first_that_runs_here():
    engine = make_engine(1)
    assert engine.instruction_set == next(name for name, runs_here in instruction_sets() if runs_here)


def test_instructions_that_the_cpu_lacks_are_refused():
    make_engine(1)
    for name, runs_here in instruction_sets():
        if not runs_here:
            with pytest.raises(ConfigError, match=rf"{name}.*portable"):
                NativeEngine(1, name)


def test_a_profile_counts_the_phases_since_it_was_read():
    engine = make_engine(2)
    gate_up, out = torch.ones(3, 8), torch.empty(3, 4)
    engine.profile_start()
    for _ in range(4):
        engine.call("pagewire_silu_and_mul", gate_up.data_ptr(), 3, 4, out.data_ptr())
    ((name, time),) = engine.profile_read().items()
    assert (name, time.num_phases) == ("other", 4)
    assert time.nanoseconds > 0
    assert engine.profile_read() == {}
    engine.profile_stop()
    engine.call("pagewire_silu_and_mul", gate_up.data_ptr(), 3, 4, out.data_ptr())
    assert engine.profile_read() == {}
