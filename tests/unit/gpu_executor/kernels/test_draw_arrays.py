"""Rows that are left to chance are laid out so that those of one kind lie together."""

from __future__ import annotations

import numpy as np
import torch

from pagewire.gpu_executor.kernels.draw_arrays import DrawArrays, RandomRow
from pagewire.gpu_executor.kernels.draws import Filters, NoiseKey

ROWS = [
    RandomRow(0, 1.0, Filters(), NoiseKey(1, 0, 9), [0]),
    RandomRow(1, 0.5, Filters(top_p=0.5), NoiseKey(2, 3, 9), [1, 5, 6]),
    RandomRow(2, 1.5, Filters(top_k=7, min_p=0.25), NoiseKey(-3, 0, 2**32 - 1), [2]),
    RandomRow(4, 1.5, Filters(top_k=50, top_p=0.9), NoiseKey(4, 127, 9), [4]),
    RandomRow(3, 1.5, Filters(top_k=100), NoiseKey(5, 1, 9), [3]),
]


def laid_out(rows, num_drawable=100):
    arrays = DrawArrays.of(rows, num_drawable)
    return arrays.table([torch.from_numpy(array) for array in arrays.arrays])


def test_rows_with_top_k_come_first_and_one_that_leaves_all_tokens_is_none():
    table = laid_out(ROWS)
    assert (table.num_top_k, table.max_top_k, table.top_ks.tolist()) == (2, 50, [7, 50])
    assert table.rows.tolist()[:2] == [2, 4]
    assert sorted(table.rows.tolist()) == [0, 1, 2, 3, 4]


def test_draws_with_top_p_come_first_and_children_count_up():
    table = laid_out(ROWS)
    draws = {
        slot: (row, child)
        for slot, row, child in zip(
            table.slots.tolist(), table.rows[table.owners].tolist(), table.children.tolist(), strict=True
        )
    }
    assert draws == {0: (0, 0), 1: (1, 3), 5: (1, 4), 6: (1, 5), 2: (2, 0), 4: (4, 127), 3: (3, 1)}
    assert table.num_limited == 4
    assert set(table.rows[table.owners[:4]].tolist()) == {1, 4}


def test_parameters_stay_with_their_rows():
    table = laid_out(ROWS)
    place = table.rows.tolist().index(2)
    assert table.temperatures[place] == 1.5
    assert table.log_min_ps[place] == np.float32(np.log(0.25))
    assert (table.log_min_ps == -torch.inf).sum() == 4
    assert table.seeds[place] == -3
    assert int(table.positions[place]) & (2**32 - 1) == 2**32 - 1


def test_later_draws_of_the_same_rows_differ_in_their_positions_alone():
    first = DrawArrays.of(ROWS, 100)
    later = first.at(np.array([10, 11, 2**32 + 12, 13, 14]))
    moved = [
        row._replace(key=row.key._replace(position=position))
        for row, position in zip(ROWS, (10, 11, 12, 14, 13), strict=True)
    ]
    expected = DrawArrays.of(moved, 100)
    for ours, other in zip(later.arrays, expected.arrays, strict=True):
        assert (ours.tolist(), ours.dtype) == (other.tolist(), other.dtype)
    assert first.arrays[6].tolist() != later.arrays[6].tolist(), "what is laid out already stays as it is"
