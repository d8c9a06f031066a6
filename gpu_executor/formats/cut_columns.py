"""Columns of a weight that had to be read whole."""

from __future__ import annotations

from torch import Tensor

from ..kernels.layouts import GROUP_SIZE, DenseWeight, Fp8Weight, Int4Weight, Int8Weight, LinearWeight


def cut_columns(weight: LinearWeight, columns: range) -> LinearWeight:
    """Return some columns of a weight, in its layout and in memory of their own.

    Args:
        weight: canonical, without a bias and without a permutation; of fp8, with a scale for each row.
        columns: which begin and end with groups of it.

    Raises:
        TypeError: if it has another layout.
    """
    match weight:
        case DenseWeight():
            return DenseWeight(_cut(weight.weight, columns, 1, 1))
        case Int4Weight(permutation=None):
            codes = _cut(weight.codes, columns, GROUP_SIZE, GROUP_SIZE // 2)
            scale, least = (_cut(part, columns, GROUP_SIZE, 1) for part in (weight.scale, weight.minimum))
            return Int4Weight(codes, scale, least, len(columns))
        case Int8Weight(permutation=None):
            size, codes = weight.group_size, _cut(weight.codes, columns, 1, 1)
            minimum = None if weight.minimum is None else _cut(weight.minimum, columns, size, 1)
            return Int8Weight(codes, _cut(weight.scale, columns, size, 1), minimum)
        case Fp8Weight(tile_rows=1) if weight.tile_columns == weight.in_features:
            return Fp8Weight(_cut(weight.codes, columns, 1, 1), weight.scale, 1, len(columns))
    raise TypeError(f"columns can't be cut out of a {type(weight).__name__}")


def _cut(numbers: Tensor, columns: range, group_size: int, numbers_of_group: int) -> Tensor:
    """[rows, groups of a row * numbers_of_group] -> those of the groups that `columns` are."""
    first, first_cut = divmod(columns.start, group_size)
    last, last_cut = divmod(columns.stop, group_size)
    assert first_cut == last_cut == 0, "columns begin and end with groups"
    return numbers[:, first * numbers_of_group : last * numbers_of_group].contiguous()
