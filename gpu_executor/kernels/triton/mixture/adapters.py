"""What the adapters of a step add to a product, all adapters in one launch: to grouped products they are experts.

Each token has one adapter or none, and each adapter two matrices. Nothing here waits for the device.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ...low_rank import LowRank, TokensOfChange
from ..launches.mixture import INVARIANT_PAIRS
from .group import PairGroups
from .grouped_product import grouped_product
from .table import MatrixTable, make_tables

# Tables of so many products are kept: of a model of 80 layers, those of six sets of adapters that share steps.
_MAX_TABLES = 2048


class _Tables(NamedTuple):
    """Where the matrices of some changes lie."""

    a: MatrixTable
    b: MatrixTable


class _Groups(NamedTuple):
    """The tokens of a step, by adapter; made from these, which live as long as this does."""

    of: tuple[Tensor | None, ...]
    num_tokens: int
    pairs: PairGroups
    rows: Tensor  # [num_pairs] int64, the same tokens


class GroupedAdapters:
    """Adds changes, and keeps what it made of adapters and of the last step.

    Args:
        is_batch_invariant: a token's bits must not depend on the number of tokens.
    """

    def __init__(self, *, is_batch_invariant: bool) -> None:
        self._is_batch_invariant = is_batch_invariant
        self._tables: OrderedDict[tuple[int, ...], _Tables] = OrderedDict()  # by the ids of living changes
        self._watched: set[int] = set()  # those whose end is heard of
        self._groups: _Groups | None = None

    def add(self, x: Tensor, y: Tensor, changes: Sequence[TokensOfChange]) -> None:
        """Add to some rows of y what their adapters give.

        Args:
            x: [num_tokens, in_features], float16, bfloat16 or float32, the last dimension contiguous.
            y: [num_tokens, out_features], x's dtype, written in place.
            changes: at least one, all of as many ranks; no token is in two of them.
        """
        groups = self._group([each.token_ids for each in changes], x)
        tables = self._find_tables([each.change for each in changes])
        pairs_as = INVARIANT_PAIRS if self._is_batch_invariant else -(-groups.rows.shape[0] // len(changes))
        hidden = torch.empty(x.shape[0], tables.a.out_features, dtype=x.dtype, device=x.device)
        grouped_product(x, tables.a, groups.pairs, hidden, is_by_pair=True, pairs_as=pairs_as)
        added = torch.empty(x.shape[0], y.shape[1], dtype=x.dtype, device=x.device)
        grouped_product(hidden, tables.b, groups.pairs, added, is_by_pair=True, pairs_as=pairs_as)
        y[groups.rows] += added[groups.rows]

    def _group(self, token_ids: Sequence[Tensor | None], x: Tensor) -> _Groups:
        known, num_tokens = self._groups, x.shape[0]
        if known is not None and known.num_tokens == num_tokens and _are_same(known.of, token_ids):
            return known
        parts = [torch.arange(num_tokens, device=x.device) if ids is None else ids for ids in token_ids]
        rows = torch.cat(parts)
        ends = torch.tensor([part.shape[0] for part in parts]).cumsum(0).tolist()
        # A kernel is compiled for each number of groups: those that only fill it up have no tokens.
        ends += ends[-1:] * (triton.next_power_of_2(len(parts)) - len(parts))
        pairs = PairGroups(rows.to(torch.int32), torch.tensor(ends, dtype=torch.int32, device=x.device), num_chosen=1)
        self._groups = _Groups(tuple(token_ids), num_tokens, pairs, rows)
        return self._groups

    def _find_tables(self, changes: Sequence[LowRank]) -> _Tables:
        key = tuple(map(id, changes))
        found = self._tables.get(key)
        if found is None:
            padded = [*changes, *changes[-1:] * (triton.next_power_of_2(len(changes)) - len(changes))]
            a, b = make_tables([change.a for change in padded]), make_tables([change.b for change in padded])
            assert a is not None, "adapters are plain matrices of one shape: `pads_ranks`"
            assert b is not None, "likewise"
            found = self._tables[key] = _Tables(a[0], b[0])
            for each in changes:
                self._watch(each)
        self._tables.move_to_end(key)
        if len(self._tables) > _MAX_TABLES:
            self._tables.popitem(last=False)
        return found

    def _watch(self, change: LowRank) -> None:
        """Have tables go with their changes: they would keep unloaded adapters in the device's memory."""
        if id(change) not in self._watched:
            self._watched.add(id(change))
            weakref.finalize(change, self._forget, id(change)).atexit = False

    def _forget(self, change_id: int) -> None:
        self._watched.discard(change_id)
        for key in [key for key in self._tables if change_id in key]:
            del self._tables[key]


def _are_same(known: Sequence[Tensor | None], token_ids: Sequence[Tensor | None]) -> bool:
    return len(known) == len(token_ids) and all(a is b for a, b in zip(known, token_ids, strict=True))
