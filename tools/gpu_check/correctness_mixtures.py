"""Mixtures of experts beside the reference: which experts are chosen, and what they give, alone and among others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.expert_choice import ExpertChoice
from pagewire.gpu_executor.kernels.layouts import DenseWeight, ExpertWeights, MixtureWeights
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from tools.gpu_check.comparison import ROUNDED_ONCE, Case, name_of
from tools.gpu_check.inputs import Inputs, PlainWeight, moved, weight_of

# The gate and up projection, what gating makes of it and each expert's output are rounded, one after the other.
_ROUNDED_IN_TURN = 15.0
_ROWS = (1, 40, 600)
_QUANTIZED = ("int4", "int4-128", "int8", "fp8")


class MixtureCases:
    """The comparisons of mixtures in one dtype.

    Args:
        ops: on the device.
        inputs: numbers.
        is_tiny: small shapes, for an interpreter.
    """

    def __init__(self, ops: Ops, inputs: Inputs, *, is_tiny: bool) -> None:
        self._ops = ops
        self._reference = ReferenceOps()
        self._inputs = inputs
        self._layouts = (name_of(inputs.dtype), *_QUANTIZED)
        self._hidden, self._size = (64, 32) if is_tiny else (2048, 768)
        self._num_experts, self._num_chosen = (4, 2) if is_tiny else (16, 4)
        self._rows = (1, 5) if is_tiny else _ROWS

    def all(self) -> Iterator[Case]:
        """Yield the choice, and the experts of each layout."""
        for num_experts, num_chosen in ((8, 2), (128, 8)):
            name = f"{self._rows[-1]} tokens, {num_chosen} of {num_experts}"
            run = partial(self._choose, self._rows[-1], num_experts, num_chosen)
            yield Case("choose_experts", name, ROUNDED_ONCE, run)
        for layout in self._layouts:
            for rows in self._rows:
                yield Case(
                    f"experts {layout}", self._name(rows), _ROUNDED_IN_TURN, partial(self._experts, layout, rows)
                )

    def invariant(self) -> Iterator[Case]:
        """Yield the experts of ops with batch invariance: they are right, and a token's bits are its own."""
        rows = self._rows[1]
        for layout in self._layouts:
            op = f"experts, batch invariant, {layout}"
            yield Case(op, self._name(rows), _ROUNDED_IN_TURN, partial(self._experts, layout, rows))
            name = f"{rows} tokens together and alone"
            yield Case(op, name, 0.0, partial(self._together_and_alone, layout, rows))

    def _name(self, rows: int) -> str:
        return f"{rows} tokens, {self._num_chosen} of {self._num_experts} experts"

    def _choose(self, rows: int, num_experts: int, num_chosen: int) -> tuple[Tensor, Tensor]:
        logits, there = self._inputs.numbers(rows, num_experts)
        choices = [
            ops.choose_experts(values, num_chosen, is_renormalized=True)
            for ops, values in ((self._ops, there), (self._reference, logits))
        ]
        # Weights by expert: a token's other experts have none.
        results = [
            torch.zeros(rows, num_experts).scatter_(1, choice.expert_ids.cpu(), choice.weights.cpu())
            for choice in choices
        ]
        return results[0], results[1]

    def _experts(self, layout: str, rows: int) -> tuple[Tensor, Tensor]:
        plain, there = self._weights(layout)
        x, x_there = self._inputs.numbers(rows, self._hidden)
        choice = self._choice(rows)
        given = self._ops.experts(x_there, self._moved(choice), there)
        return given, self._reference.experts(x, choice, plain)

    def _together_and_alone(self, layout: str, rows: int) -> tuple[Tensor, Tensor]:
        _, weights = self._weights(layout)
        _, x = self._inputs.numbers(rows, self._hidden)
        choice = self._moved(self._choice(rows))
        alone = [
            self._ops.experts(
                x[row : row + 1],
                ExpertChoice(choice.expert_ids[row : row + 1], choice.weights[row : row + 1]),
                weights,
            )
            for row in range(rows)
        ]
        return self._ops.experts(x, choice, weights), torch.cat(alone)

    def _choice(self, rows: int) -> ExpertChoice:
        logits, _ = self._inputs.numbers(rows, self._num_experts)
        return self._reference.choose_experts(logits, self._num_chosen, is_renormalized=True)

    def _moved(self, choice: ExpertChoice) -> ExpertChoice:
        return ExpertChoice(choice.expert_ids.to(self._inputs.device), choice.weights.to(self._inputs.device))

    def _weights(self, layout: str) -> tuple[MixtureWeights, MixtureWeights]:
        """Return a mixture as the reference takes it, and the same on the device."""
        matrices = [
            (self._matrix(layout, 2 * self._size, self._hidden), self._matrix(layout, self._hidden, self._size))
            for _ in range(self._num_experts)
        ]
        prepared = [
            tuple(self._ops.prepare_weight(moved(matrix, self._inputs.device)) for matrix in pair) for pair in matrices
        ]
        return (
            self._mixture(tuple(ExpertWeights(*pair) for pair in matrices)),
            self._mixture(tuple(ExpertWeights(*pair) for pair in prepared)),
        )

    def _matrix(self, layout: str, out_features: int, in_features: int) -> PlainWeight:
        return weight_of(layout, self._inputs.generator, out_features, in_features)

    def _mixture(self, experts: tuple[ExpertWeights, ...]) -> MixtureWeights:
        return MixtureWeights(
            norm=torch.ones(self._hidden),
            norm_eps=1e-5,
            router=DenseWeight(torch.zeros(self._num_experts, self._hidden)),
            experts=experts,
            first_expert=0,
            num_chosen=self._num_chosen,
            is_renormalized=True,
        )
