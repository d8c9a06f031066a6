"""How much more fits a step: tokens of its budget, rows, and the time by which prefills may hold up decodes."""

from __future__ import annotations

import math

from .costs import StepCosts, StepShape

# Prefills may make a step so many times as long as its decodes alone would be; see docs/adr/0008.
MAX_SLOWDOWN = 3.0
# The first prefill of a step always gets so many tokens: decodes slow it down, and never stop it.
MIN_PREFILL_TOKENS = 16


class StepRoom:
    """Counts down while a step is put together, its decodes first.

    A step without decodes takes prefill tokens up to its budget. One with decodes is to last no longer than the target,
    or than `MAX_SLOWDOWN` times what its decodes take alone, whichever is more.

    Args:
        max_num_tokens: the step's budget.
        target_s: a time between tokens that nobody minds; 0: prefills are not limited.
        costs: what steps take.
        max_prefill_tokens: of one child; infinite where the budget alone limits them.

    Attributes:
        num_tokens: what is left of the budget.
        num_rows: how many more rows the step may have; infinite where the budget alone limits them.
        shape: what the step computes so far.
    """

    def __init__(
        self, max_num_tokens: int, target_s: float, costs: StepCosts, max_prefill_tokens: float = math.inf
    ) -> None:
        self.num_tokens = max_num_tokens
        self.num_rows = math.inf
        self._target_s = target_s
        self._costs = costs
        self._max_prefill_tokens = max_prefill_tokens
        self.shape = StepShape()
        self._limit_s: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits, not even a decode."""
        return self.num_tokens <= 0 or self.num_rows <= 0

    def has_room(self) -> bool:
        """Whether any prefill, however far it is, can get a token."""
        return not self.is_full and self._left_s() > 0.0

    def tokens_for(self, num_computed_tokens: int, num_wanted_tokens: int) -> int:
        """Return how many of a child's next tokens fit; 0 if none does.

        Args:
            num_computed_tokens: before the step.
            num_wanted_tokens: as many as the child lacks.
        """
        num_tokens = 0 if self.is_full else int(min(num_wanted_tokens, self.num_tokens, self._max_prefill_tokens))
        if num_tokens <= 1:
            return num_tokens
        left_s = self._left_s()
        if left_s <= 0.0:
            return 0
        if left_s == math.inf:
            return num_tokens
        num_in_time = self._costs.prefill_tokens_within(left_s, num_computed_tokens)
        least = 1 if self.shape.num_prefill_tokens else MIN_PREFILL_TOKENS
        return int(min(num_tokens, max(num_in_time, least)))

    def _left_s(self) -> float:
        """Seconds that prefills may still take; the first call comes when all decodes are in."""
        if not self.shape.num_decodes or not self._target_s:
            return math.inf
        shape_s = self._costs.predict_s(self.shape)
        if self._limit_s is None:
            self._limit_s = max(self._target_s, MAX_SLOWDOWN * shape_s)
        return self._limit_s - shape_s

    def take(self, num_computed_tokens: int, num_tokens: int, num_drafts: int = 0) -> None:
        """Count a child's share in; the last of its tokens may be drafts."""
        self.num_tokens -= num_tokens
        self.num_rows -= 1
        self.shape.add(num_computed_tokens, num_tokens, num_drafts)

    def give_back(self, num_computed_tokens: int, num_tokens: int, num_drafts: int = 0) -> None:
        """Undo `take`, as the child was preempted."""
        self.num_tokens += num_tokens
        self.num_rows += 1
        self.shape.remove(num_computed_tokens, num_tokens, num_drafts)
