"""What a comparison of an op with the reference is, and how far a result may be off."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tools.gpu_check.records import Check

# In units of the dtype's epsilon: a result that is rounded once is off by 0.3 of them on average, which counts
# `_OF_THE_MEAN` times; sums of rounded products by more.
ROUNDED_ONCE, SUMMED = 3.0, 6.0
_OF_THE_MEAN = 8.0
# Sums of thousands of products are no more exact than this in float32, in which everything is summed.
_LEAST_EPS = 2.0**-18


class Case(NamedTuple):
    """One comparison.

    Attributes:
        op: which kernel.
        name: on what.
        ulps: what the difference may be, in units of the dtype's epsilon.
        run: returns what the device gives and what is expected.
    """

    op: str
    name: str
    ulps: float
    run: Callable[[], tuple[Tensor, Tensor]]


def check(case: Case, dtype: torch.dtype) -> Check:
    """Run a case; whatever an op raises is its failure, and the others go on."""
    name = f"{case.name}, {name_of(dtype)}"
    limit = case.ulps * max(torch.finfo(dtype).eps, _LEAST_EPS)
    try:
        actual, expected = case.run()
    except Exception as exc:  # whatever a kernel, its compiler or the driver raises is the finding
        return Check(op=case.op, case=name, error=None, limit=limit, failure=_first_line(exc))
    return Check(op=case.op, case=name, error=relative_error(actual, expected), limit=limit)


def relative_error(actual: Tensor, expected: Tensor) -> float | None:
    """Return how far a result is off; None if the shapes differ, or some difference is no number.

    That is the largest difference, each by the size of what is expected there and of all that is expected together; or
    the mean difference some times over, if that is more: a factor that is slightly wrong everywhere hides below the
    largest rounding error of 16 bits, but not below the mean one.
    """
    got, wanted = actual.detach().cpu().double(), expected.detach().cpu().double()
    if got.shape != wanted.shape:
        return None
    mean_size = wanted.square().mean().sqrt()
    largest = ((got - wanted).abs() / (wanted.abs() + mean_size)).max().item()
    mean = ((got - wanted).square().mean().sqrt() / mean_size).item()
    error = max(largest, _OF_THE_MEAN * mean)
    return error if math.isfinite(error) else None


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name without its package."""
    return str(dtype).removeprefix("torch.")


def _first_line(exc: Exception) -> str:
    lines = str(exc).strip().splitlines()
    return f"{type(exc).__name__}: {lines[0] if lines else ''}"[:300]
