"""What a step costs, learned from those that came back: a pure function of the shapes and times it was told."""

from __future__ import annotations

import math
from dataclasses import dataclass

# A cost that changed (another process took a core, contexts grew) is half forgotten after 34 steps.
_MEMORY = 0.98
_NUM_SWEEPS = 2  # of the solver per step; it starts from the last solution, which is nearly right
# Sums over a feature that no step has shown for long fade out. Its cost stays as it was last known.
_FADED = 1e-200
_NUM_FEATURES = 5
_Features = tuple[float, float, float, float, float]


@dataclass(slots=True)
class StepShape:
    """What a step's time depends on.

    Attributes:
        num_decodes: rows that compute their last token, and drafts behind it.
        num_drafts: those drafts.
        num_prefill_tokens: tokens of all other rows.
        num_attended: positions that the tokens attend to, summed over the tokens.
        num_guesses: that a draft model makes behind the rows' draws; see `GuessCosts`.
    """

    num_decodes: int = 0
    num_prefill_tokens: int = 0
    num_attended: int = 0
    num_drafts: int = 0
    num_guesses: int = 0

    def add(self, num_computed_tokens: int, num_new_tokens: int, num_drafts: int = 0) -> None:
        """Add a row that computes `num_new_tokens` behind `num_computed_tokens`, the last `num_drafts` being drafts."""
        if num_new_tokens == 1:
            self.num_decodes += 1
            self.num_attended += num_computed_tokens + 1
            return
        if num_drafts:
            self.num_decodes += 1
            self.num_drafts += num_drafts
        else:
            self.num_prefill_tokens += num_new_tokens
        self.num_attended += _num_attended(num_computed_tokens, num_new_tokens)

    def remove(self, num_computed_tokens: int, num_new_tokens: int, num_drafts: int = 0) -> None:
        """Take a row that was added out again."""
        if num_new_tokens == 1 or num_drafts:
            self.num_decodes -= 1
            self.num_drafts -= num_drafts
        else:
            self.num_prefill_tokens -= num_new_tokens
        self.num_attended -= _num_attended(num_computed_tokens, num_new_tokens)


class StepCosts:
    """Seconds of a step = base + per decode, draft, prefill token and attended position, each at least 0.

    The five are fitted to finished steps by least squares of the *relative* error with exponential forgetting. So short
    steps count as much as long ones, and a step that was held up (swapped out, a neighbour's burst) hardly counts:
    relative to its long time, whatever the model says is wrong by at most its whole.
    """

    def __init__(self) -> None:
        self._costs = [0.0] * _NUM_FEATURES
        self._products = [[0.0] * _NUM_FEATURES for _ in range(_NUM_FEATURES)]  # decayed sum of features x features
        self._totals = [0.0] * _NUM_FEATURES  # decayed sum of features x 1, the relative time
        self.num_steps = 0

    def observe(self, shape: StepShape, step_s: float) -> None:
        """Learn from a finished step; one with guesses, or that its executor did not measure (0 s), is passed over.

        Args:
            shape: what it computed.
            step_s: seconds that it took.
        """
        if not 0.0 < step_s < math.inf or shape.num_guesses:
            return
        self.num_steps += 1
        relative = [feature / step_s for feature in _features(shape)]
        for i, products in enumerate(self._products):
            self._totals[i] = _MEMORY * self._totals[i] + relative[i]
            for j in range(_NUM_FEATURES):
                products[j] = _MEMORY * products[j] + relative[i] * relative[j]
        self._solve()

    def predict_s(self, shape: StepShape) -> float:
        """Return the seconds that a step of that shape will take; 0 before the first one came back."""
        per_token, per_decode, per_attended, per_draft, base = self._costs
        return (
            base
            + per_decode * shape.num_decodes
            + per_draft * shape.num_drafts
            + per_token * shape.num_prefill_tokens
            + per_attended * shape.num_attended
        )

    @property
    def draft_s(self) -> float:
        """Seconds that a draft takes beside decodes; 0 before the first one came back."""
        return self._costs[3]

    def decodes_s(self, num_decodes: int) -> float:
        """Return the seconds of a step of decodes alone, what they attend to left out; 0 if nothing is known."""
        _, per_decode, _, _, base = self._costs
        return base + per_decode * num_decodes

    def prefill_tokens_within(self, seconds: float, num_computed_tokens: int) -> float:
        """Return how many tokens of one prompt cost so much.

        Args:
            seconds: what the step has left.
            num_computed_tokens: of the prompt, before the chunk.

        Returns:
            A number of tokens, at least 0; infinite while nothing is known of their cost.
        """
        per_token, _, per_attended, _, _ = self._costs
        # Token i of the chunk attends to num_computed_tokens + i positions: seconds = linear n + quadratic n^2.
        linear = per_token + per_attended * (num_computed_tokens + 0.5)
        quadratic = per_attended / 2
        if seconds <= 0.0:
            return 0.0
        if linear == 0.0 and quadratic == 0.0:
            return math.inf
        return 2 * seconds / (linear + math.sqrt(linear * linear + 4 * quadratic * seconds))

    def _solve(self) -> None:
        # Coordinate descent: each cost in turn to its best value at the others' values, but not below 0. As long as all
        # steps were of one shape, the first one that this shape has takes it all: that of tokens, if there were any.
        costs = self._costs
        for _ in range(_NUM_SWEEPS):
            for i, products in enumerate(self._products):
                if products[i] > _FADED:
                    gradient = self._totals[i] - sum(map(_multiply, products, costs))
                    costs[i] = max(costs[i] + gradient / products[i], 0.0)


def _num_attended(num_computed_tokens: int, num_new_tokens: int) -> int:
    # The first token attends to those before it and to itself, each later one to one more.
    return num_new_tokens * num_computed_tokens + num_new_tokens * (num_new_tokens + 1) // 2


def _multiply(a: float, b: float) -> float:
    return a * b


def _features(shape: StepShape) -> _Features:
    return (
        float(shape.num_prefill_tokens),
        float(shape.num_decodes),
        float(shape.num_attended),
        float(shape.num_drafts),
        1.0,
    )
