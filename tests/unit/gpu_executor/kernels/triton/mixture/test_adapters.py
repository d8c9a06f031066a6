"""Adapters of a step in one launch: the sums of the plain form, and a row's own bits."""

from __future__ import annotations

import itertools
import weakref

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.layouts import DenseWeight
from pagewire.gpu_executor.kernels.low_rank import LowRank, TokensOfChange

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.mixture.adapters import GroupedAdapters

pytestmark = pytest.mark.usefixtures("poisoned_memory")

NUM_TOKENS, IN_FEATURES, RANKS, OUT_FEATURES = 41, 70, 16, 90


def make_changes(count: int, dtype: torch.dtype) -> list[LowRank]:
    generator = torch.Generator().manual_seed(3)
    return [
        LowRank(
            DenseWeight(torch.randn(RANKS, IN_FEATURES, generator=generator).to(dtype)),
            DenseWeight(torch.randn(OUT_FEATURES, RANKS, generator=generator).to(dtype)),
        )
        for _ in range(count)
    ]


def plainly(x: Tensor, y: Tensor, changes: list[TokensOfChange]) -> Tensor:
    expected = y.double()
    for each in changes:
        rows = slice(None) if each.token_ids is None else each.token_ids
        assert isinstance(each.change.a, DenseWeight)
        assert isinstance(each.change.b, DenseWeight)
        hidden = (x[rows].double() @ each.change.a.weight.double().T).to(x.dtype).double()
        expected[rows] += hidden @ each.change.b.weight.double().T
    return expected


def divide(changes: list[LowRank]) -> list[TokensOfChange]:
    """Give each a run of tokens, of which every fourth one has none."""
    bounds = [*(0, 20, 33)[: len(changes)], NUM_TOKENS]
    tokens = [torch.tensor([t for t in range(*pair) if t % 4 or t == 40]) for pair in itertools.pairwise(bounds)]
    return [TokensOfChange(change, ids) for change, ids in zip(changes, tokens, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("is_batch_invariant", [False, True])
def test_sums_are_those_of_the_plain_form(dtype: torch.dtype, count: int, is_batch_invariant: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NUM_TOKENS, IN_FEATURES, generator=generator).to(dtype)
    y = torch.randn(NUM_TOKENS, OUT_FEATURES, generator=generator).to(dtype)
    changes, before = divide(make_changes(count, dtype)), y.clone()
    expected = plainly(x, y, changes)
    GroupedAdapters(is_batch_invariant=is_batch_invariant).add(x, y, changes)
    tolerance = 2e-5 if dtype == torch.float32 else 5e-3
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=100 * tolerance)
    changed = torch.cat([each.token_ids for each in changes if each.token_ids is not None])
    others = torch.ones(NUM_TOKENS, dtype=torch.bool).index_fill(0, changed, value=False)
    assert torch.equal(y[others], before[others])


@pytest.mark.usefixtures("ordered_products")
def test_a_row_has_the_same_bits_whoever_shares_its_step() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NUM_TOKENS, IN_FEATURES, generator=generator)
    changes, grouped = divide(make_changes(3, torch.float32)), GroupedAdapters(is_batch_invariant=True)
    together = torch.zeros(NUM_TOKENS, OUT_FEATURES)
    grouped.add(x, together, changes)
    for each in changes:
        assert each.token_ids is not None
        for ids in (each.token_ids, each.token_ids[:1], each.token_ids[-3:]):
            alone = torch.zeros(len(ids), OUT_FEATURES)
            grouped.add(x[ids], alone, [TokensOfChange(each.change, None)])
            assert torch.equal(alone, together[ids])


def test_the_next_product_of_a_step_finds_its_tokens_grouped() -> None:
    x = torch.ones(NUM_TOKENS, IN_FEATURES)
    changes, grouped = divide(make_changes(2, torch.float32)), GroupedAdapters(is_batch_invariant=True)
    grouped.add(x, torch.zeros(NUM_TOKENS, OUT_FEATURES), changes)
    kept, others = grouped._groups, make_changes(2, torch.float32)  # it tells nobody what it keeps
    following = [TokensOfChange(change, each.token_ids) for change, each in zip(others, changes, strict=True)]
    grouped.add(x, torch.zeros(NUM_TOKENS, OUT_FEATURES), following)
    assert grouped._groups is kept
    assert len(grouped._tables) == 2


def test_an_adapter_that_is_gone_leaves_no_memory_behind() -> None:
    x = torch.ones(NUM_TOKENS, IN_FEATURES)
    first, second = make_changes(2, torch.float32)
    grouped = GroupedAdapters(is_batch_invariant=True)
    for changes in ([first], [second], [first, second]):
        grouped.add(x, torch.zeros(NUM_TOKENS, OUT_FEATURES), divide(changes))
    assert isinstance(first.a, DenseWeight)
    kept = weakref.ref(first.a.weight)
    del first, changes
    assert kept() is None
    assert list(grouped._tables) == [(id(second),)]
