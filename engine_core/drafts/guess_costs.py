"""What the guesses of a draft model and their checks take beside decodes, measured for each number of decodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..steps.costs import StepShape

# What was measured is mostly forgotten after a few steps: they are few, and what they take changes with the machine.
_NEW_SHARE = 0.3
# One step that was held up says little: it counts as this many times what was expected.
_MOST_TIMES = 2.0
_NUM_FIRST = 2  # the first step of a kind may have had something to prepare
# So many steps with guesses after which it has to be measured again what they would take without.
_MEASURE_INTERVAL = 48


@dataclass(slots=True)
class _Measured:
    """A mean of late values; not known before there were enough of them."""

    value: float = math.inf
    count: int = 0

    @property
    def is_known(self) -> bool:
        return self.count >= _NUM_FIRST

    def observe(self, value: float) -> None:
        self.count += 1
        if self.count <= _NUM_FIRST:
            self.value = min(self.value, value)
        else:
            self.value += _NEW_SHARE * (min(value, _MOST_TIMES * self.value) - self.value)


@dataclass(slots=True)
class _Costs:
    """For about the same number of decodes: seconds of a step of them alone, and of each guess or check beyond it."""

    plain: _Measured
    unit: _Measured
    num_since_plain: int = 0


class GuessCosts:
    """Prices guesses in tokens that the decodes would bring meanwhile.

    A regression over all steps can't: while every decode is guessed for, what the one takes can't be told from what the
    other takes. So steps of decodes alone are asked for now and then, and the others are compared with those.
    """

    def __init__(self) -> None:
        self._by_size: dict[int, _Costs] = {}

    def observe(self, shape: StepShape, step_s: float) -> None:
        """Learn from a finished step; one with prefills in it says nothing."""
        if not 0.0 < step_s < math.inf or shape.num_prefill_tokens or not shape.num_decodes:
            return
        costs = self._of(shape.num_decodes)
        num_units = shape.num_drafts + shape.num_guesses
        if not num_units:
            costs.plain.observe(step_s)
            costs.num_since_plain = 0
            return
        costs.num_since_plain += 1
        if costs.plain.is_known:
            costs.unit.observe(max(step_s - costs.plain.value, 0.0) / num_units)

    def needs_plain_step(self, num_decodes: int) -> bool:
        """Whether steps of so many decodes have to be measured without guesses before others pay."""
        costs = self._of(num_decodes)
        return not costs.plain.is_known or costs.num_since_plain >= _MEASURE_INTERVAL

    def price(self, num_decodes: int) -> float | None:
        """Return the tokens that the decodes bring while a guess is made and checked; None before any was."""
        costs = self._of(num_decodes)
        if not costs.plain.is_known or not costs.unit.is_known:
            return None
        return 2 * costs.unit.value * num_decodes / costs.plain.value

    def _of(self, num_decodes: int) -> _Costs:
        size = round(4 * math.log2(num_decodes))  # numbers within a fifth of each other
        costs = self._by_size.get(size)
        if costs is None:
            costs = self._by_size[size] = _Costs(_Measured(), _Measured())
        return costs
