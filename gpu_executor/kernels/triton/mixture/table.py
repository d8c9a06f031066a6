"""The matrices of all experts as one launch finds them: a table of where each lies.

Experts are loaded and packed one by one, each into memory of its own; copying them into one stack would take it twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...layouts import DenseWeight, LinearWeight, StackedWeight
from ..packed_weight import PackedWeight


@dataclass(frozen=True, slots=True)
class DenseTable:
    """Plain matrices of one shape and dtype.

    Attributes:
        matrices: [num_experts] int64, addresses of their first numbers.
        like: one of them.
    """

    matrices: Tensor
    like: DenseWeight

    @property
    def out_features(self) -> int:
        """Rows of each."""
        return self.like.out_features


@dataclass(frozen=True, slots=True)
class PackedTable:
    """Packed matrices of one shape and kind.

    Attributes:
        words: [num_experts] int64, addresses of their words; `scales` likewise.
        like: one of them.
    """

    words: Tensor
    scales: Tensor
    like: PackedWeight

    @property
    def out_features(self) -> int:
        """Rows of each."""
        return self.like.out_features


MatrixTable = DenseTable | PackedTable


def make_tables(weights: Sequence[LinearWeight]) -> tuple[MatrixTable, ...] | None:
    """Return the table of the experts' matrices, or several of rows that are stored in different forms.

    Args:
        weights: of one projection, an expert each, as `prepare_weight` gave them; at least one. They have to live as
            long as the tables are used.

    Returns:
        None if the experts' forms differ, or a form is none that grouped products know: one with a bias, or with
        columns in another order than the input channels.
    """
    stacks = [weight.parts if isinstance(weight, StackedWeight) else (weight,) for weight in weights]
    if len({len(parts) for parts in stacks}) != 1:
        return None
    tables = [_table(column) for column in zip(*stacks, strict=True)]
    known = [table for table in tables if table is not None]
    return tuple(known) if len(known) == len(tables) else None


def _table(weights: Sequence[LinearWeight]) -> MatrixTable | None:
    first = weights[0]
    if len({_form_of(weight) for weight in weights}) != 1:
        return None
    match first:
        case DenseWeight(bias=None):
            return DenseTable(_addresses([w.weight for w in weights if isinstance(w, DenseWeight)]), first)
        case PackedWeight(bias=None, permutation=None):
            packed = [weight for weight in weights if isinstance(weight, PackedWeight)]
            words, scales = _addresses([w.words for w in packed]), _addresses([w.scales for w in packed])
            return PackedTable(words, scales, first)
    return None


def _form_of(weight: LinearWeight) -> tuple[object, ...]:
    match weight:
        case DenseWeight():
            return weight.weight.shape, weight.weight.dtype, weight.bias is None
        case PackedWeight():
            shapes = weight.words.shape, weight.num_rows, weight.num_channels, weight.bias is None
            return *shapes, weight.fields, weight.has_minimum, weight.scale_channels, weight.permutation is None
    return (type(weight),)


def _addresses(tensors: Sequence[Tensor]) -> Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64, device=tensors[0].device)
