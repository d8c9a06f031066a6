"""What tests of kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.quick_interpreter import language_patched_once


@pytest.fixture(autouse=True, scope="package")
def quick_interpreter() -> Iterator[None]:
    """Launches of these tests don't prepare the interpreter anew."""
    with language_patched_once():
        yield


@pytest.fixture
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a kernel leaves as it was allocated reads as NaN, or as the largest integer."""
    empty, empty_like = torch.empty, torch.empty_like

    def poisoned(tensor: Tensor) -> Tensor:
        if tensor.dtype.is_floating_point:
            return tensor.fill_(torch.nan)
        return tensor.fill_(torch.iinfo(tensor.dtype).max)

    # Arguments of any kind are handed on.
    def empty_poisoned(*args: Any, **kwargs: Any) -> Tensor:
        return poisoned(empty(*args, **kwargs))

    def empty_like_poisoned(*args: Any, **kwargs: Any) -> Tensor:
        return poisoned(empty_like(*args, **kwargs))

    monkeypatch.setattr(torch, "empty", empty_poisoned)
    monkeypatch.setattr(torch, "empty_like", empty_like_poisoned)


@pytest.fixture
def ordered_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's products add channel after channel, as a device's do, wherever in a tile an element lies.

    numpy's own add in an order that depends on the place: with them no row has the same bits in two batches.
    """
    import numpy as np
    import triton.runtime.interpreter as interpreter

    def create_dot(builder: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        total = d.data.copy()
        left, right = a.data.astype(np.float32), b.data.astype(np.float32)
        for channel in range(left.shape[-1]):
            total += left[..., :, channel, None] * right[..., None, channel, :]
        return interpreter.TensorHandle(total, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
