"""All launch choices of the Triton kernels, and what they compile to: one table for tests, tools and people."""

from __future__ import annotations

from collections.abc import Mapping

from . import rms_norm, rotary, silu_and_mul
from .launches import elementwise
from .launches.row import CompileCases, LaunchRow

TABLE: tuple[LaunchRow, ...] = (*elementwise.RMS_NORM, *elementwise.ROTARY, *elementwise.SILU_AND_MUL)
"""Each kernel's rows, in the order in which they are tried."""

COMPILE_CASES: Mapping[str, CompileCases] = {
    "rms_norm": rms_norm.compile_cases,
    "rotary": rotary.compile_cases,
    "silu_and_mul": silu_and_mul.compile_cases,
}
"""Kernel -> what a row of it stands for."""
