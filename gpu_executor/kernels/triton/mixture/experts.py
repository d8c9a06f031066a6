"""A rank's experts, ready to compute: their tables, and the launches that take tokens through them.

Nothing here waits for the device, and what is launched follows from the number of tokens: graphs may hold it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...expert_choice import ExpertChoice
from ...layouts import MixtureWeights
from ..launches.mixture import INVARIANT_PAIRS, PAIR_NUMBERS
from .combine import combine_experts
from .group import PairGroups, group_pairs
from .grouped_product import grouped_product
from .table import MatrixTable, make_tables


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    """The experts of one mixture, as grouped products find them.

    Attributes:
        weights: that the tables point into.
        gate_up: tables of the gate and up projection, whose rows follow each other.
        down: likewise.
    """

    weights: MixtureWeights
    gate_up: tuple[MatrixTable, ...]
    down: tuple[MatrixTable, ...]

    def run(
        self, x: Tensor, choice: ExpertChoice, gate: Callable[[Tensor], Tensor], *, is_batch_invariant: bool
    ) -> Tensor:
        """Compute each token by its experts of this rank; see `Ops.experts`.

        Args:
            x: [num_tokens, hidden_size], float16, bfloat16 or float32.
            choice: of all experts, on x's device.
            gate: puts the gate and up projection through the activation.
            is_batch_invariant: a token's bits must not depend on the number of tokens.
        """
        num_tokens, num_chosen = choice.expert_ids.shape
        total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        # What the pairs of a step hold between the products would take gigabytes.
        widest = sum(table.out_features for table in self.gate_up) + x.shape[1]
        step = max(1, PAIR_NUMBERS // (num_chosen * widest))
        for first in range(0, num_tokens, step):
            tokens = slice(first, first + step)
            part = ExpertChoice(choice.expert_ids[tokens], choice.weights[tokens])
            self._run(x[tokens], part, gate, is_batch_invariant, total[tokens])
        return total

    def _run(
        self, x: Tensor, choice: ExpertChoice, gate: Callable[[Tensor], Tensor], is_batch_invariant: bool, total: Tensor
    ) -> None:
        experts, first_expert = self.weights.experts, self.weights.first_expert
        groups = group_pairs(choice.expert_ids, len(experts), first_expert)
        num_pairs = choice.expert_ids.numel()
        pairs_as = INVARIANT_PAIRS if is_batch_invariant else -(-num_pairs // self.weights.router.out_features)
        gate_up = _multiply(x, self.gate_up, groups, is_by_pair=False, pairs_as=pairs_as)
        outputs = _multiply(gate(gate_up), self.down, groups, is_by_pair=True, pairs_as=pairs_as)
        combine_experts(outputs, choice, len(experts), first_expert, total)


def group_experts(weights: MixtureWeights) -> GroupedExperts | None:
    """Return a mixture's experts as one; None if they can't be: see `make_tables`."""
    gate_up = make_tables([expert.gate_up for expert in weights.experts])
    down = make_tables([expert.down for expert in weights.experts])
    return None if gate_up is None or down is None else GroupedExperts(weights, gate_up, down)


def _multiply(
    x: Tensor, tables: tuple[MatrixTable, ...], groups: PairGroups, *, is_by_pair: bool, pairs_as: int
) -> Tensor:
    out_features = sum(table.out_features for table in tables)
    out = torch.empty(groups.order.shape[0], out_features, dtype=x.dtype, device=x.device)
    first = 0
    for table in tables:
        columns = out[:, first : first + table.out_features]
        grouped_product(x, table, groups, columns, is_by_pair=is_by_pair, pairs_as=pairs_as)
        first += table.out_features
    return out
