"""Planted errors: does a comparison's tolerance notice what goes wrong in kernels?

    compare = functools.partial(assert_same, expected)     # the very comparison that the test makes
    assert_notices(compare, actual)

passes if `compare` accepts `actual` and refuses each spoilt copy of it. A tolerance that lets one through is too wide
to be worth its name; one that is too narrow for an honest result fails at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Planted(NamedTuple):
    """One way in which a kernel's output goes wrong.

    `spoil` changes the tensor that it is given, of at least two elements and any shape.
    """

    name: str
    spoil: Callable[[Tensor], None]


def _spread(tensor: Tensor) -> float:
    """Return the standard deviation, by which an error is small or large; at least something."""
    return max(tensor.double().nan_to_num(0, 0, 0).std().item(), 1e-3)


def _one_element_off(tensor: Tensor) -> None:
    """A race, or an index that is wrong once: an eighth of the spread, which a mean over the tensor would not show."""
    flat = tensor.view(-1)
    flat[flat.numel() // 2] += _spread(tensor) / 8


def _not_a_number(tensor: Tensor) -> None:
    tensor.view(-1)[-1] = float("nan")


def _tail_missing(tensor: Tensor) -> None:
    """The last element of each row was masked out; 1 is added where it is 0 anyway."""
    tail = tensor[..., -1]
    tail[...] = torch.where(tail == 0, 1.0, 0.0).to(tensor.dtype)


def _row_of_the_neighbour(tensor: Tensor) -> None:
    """A wrong row's result: the first is written in place of the last."""
    rows = tensor.view(-1, tensor.shape[-1]) if tensor.dim() > 1 else tensor.view(-1, 1)
    rows[-1] = rows[0] if not torch.equal(rows[-1], rows[0]) else rows[0] + 1


def _scale_forgotten(tensor: Tensor) -> None:
    """A factor that is nearly one: 1/16 too large."""
    tensor.mul_(1 + 1 / 16)


def _sum_in_low_precision(tensor: Tensor) -> None:
    """What adding up in the 8 bits of bfloat16 leaves of a result: noise of 1/64 of each element."""
    noise = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    tensor.add_((noise.to(tensor.device) * tensor.float() / 64).to(tensor.dtype))


PLANTED_ERRORS: tuple[Planted, ...] = (
    Planted("one element is off", _one_element_off),
    Planted("one element is no number", _not_a_number),
    Planted("each row's last element is missing", _tail_missing),
    Planted("a row is its neighbour's", _row_of_the_neighbour),
    Planted("all is 1/16 too large", _scale_forgotten),
)
"""What any comparison of floats has to notice, bfloat16 ones too."""

PRECISION_ERRORS: tuple[Planted, ...] = (Planted("sums were kept in bfloat16", _sum_in_low_precision),)
"""What a comparison of float16 or float32 results has to notice besides."""


def assert_notices(
    compare: Callable[[Tensor], None], actual: Tensor, *, planted: Sequence[Planted] = PLANTED_ERRORS
) -> None:
    """Fail unless a comparison accepts a result and refuses each spoilt copy of it.

    Args:
        compare: raises AssertionError for a tensor that differs from what it expects.
        actual: a result that it has to accept.
        planted: ways to spoil it.
    """
    compare(actual)
    unnoticed = []
    for error in planted:
        spoilt = actual.clone(memory_format=torch.contiguous_format)
        error.spoil(spoilt)
        try:
            compare(spoilt)
        except AssertionError:
            continue
        unnoticed.append(error.name)
    assert not unnoticed, f"the comparison does not notice: {'; '.join(unnoticed)}"
