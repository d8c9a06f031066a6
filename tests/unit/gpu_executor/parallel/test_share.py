"""Ranks divide things in order, and together they hold all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagewire.gpu_executor.parallel.share import WHOLE, Share

SIZES = st.integers(1, 9)
COUNTS = st.integers(0, 40)


def shares(size: int) -> list[Share]:
    return [Share(rank, size) for rank in range(size)]


@given(SIZES, COUNTS)
def test_parts_are_neighbours_and_make_up_the_whole(size: int, count: int) -> None:
    everything = list(range(count))
    assert [thing for share in shares(size) for thing in share.of_nearly_even(count)] == everything
    assert [thing for share in shares(size) for thing in share.of_uneven(count)] == everything
    assert [thing for share in shares(size) for thing in share.of(count * size)] == list(range(count * size))


@given(SIZES, COUNTS)
def test_nearly_even_parts_differ_by_one_at_most_and_the_first_are_longer(size: int, count: int) -> None:
    lengths = [len(share.of_nearly_even(count)) for share in shares(size)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@given(SIZES, COUNTS)
def test_uneven_parts_are_as_long_as_the_first_until_things_run_out(size: int, count: int) -> None:
    lengths = [len(share.of_uneven(count)) for share in shares(size)]
    full = lengths.count(lengths[0])
    assert sum(length > 0 for length in lengths[full:]) <= 1


@given(SIZES, st.integers(1, 5))
def test_fewer_things_than_ranks_are_held_by_neighbours(count: int, repeats: int) -> None:
    held = [share.of_repeated(count) for share in shares(count * repeats)]
    assert held == [range(thing, thing + 1) for thing in range(count) for _ in range(repeats)]


def test_first_and_last_are_the_same_where_there_is_one() -> None:
    assert (WHOLE.is_first, WHOLE.is_last) == (True, True)
    assert [(share.is_first, share.is_last) for share in shares(3)] == [(True, False), (False, False), (False, True)]
