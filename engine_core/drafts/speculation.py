"""How many drafts a child's next step checks: as many as pay, by what was accepted so far and by what steps cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..request import Child
from ..steps.costs import StepCosts, StepShape

# What a draft must bring beyond its cost: what steps take is known roughly, and what is accepted changes with the text.
MARGIN = 1.2
# How long the device waits for the step behind one that is awaited, as a share of what any step takes. Measured on two
# CPU cores: 0.5 to 1 ms of 8.
_IDLE_SHARE = 0.15
# Where drafts are likely right and don't seem to pay, some are checked once in so many steps all the same: their cost
# is known by checks alone, and one that was held up would put an end to all others.
_TRIAL_INTERVAL, _TRIAL_RATE, _TRIAL_DRAFTS = 32, 0.5, 4


@dataclass(slots=True)
class DraftCounts:
    """What became of drafts since the core's start.

    Attributes:
        num_checks: rows of steps that checked drafts.
        num_drafts: that were checked.
        accepted_at: by place among a row's drafts, how many were accepted there.
    """

    num_checks: int = 0
    num_drafts: int = 0
    accepted_at: list[int] = field(default_factory=list)

    def count(self, num_drafts: int, num_accepted: int) -> None:
        """Count a row's check in."""
        self.num_checks += 1
        self.num_drafts += num_drafts
        self.accepted_at.extend([0] * (num_drafts - len(self.accepted_at)))
        for place in range(num_accepted):
            self.accepted_at[place] += 1


class DraftPolicy:
    """Grants drafts.

    A draft at depth i is accepted with the i-th power of the child's rate. It pays if the token that it brings is worth
    more than the time that it takes: time in which the step's decodes bring tokens at the rate that they do without.
    And all drafts of a step together have to make up for its being awaited: how its children go on is not known before,
    and steps of the others alone would read all weights for a few tokens.

    Guesses that were not checked are compared with what was drawn, which costs nothing: a child whose text has come to
    a repetition is found out.

    Args:
        max_drafts: most drafts of a child in a step; 0: there are none.
        runs_ahead: whether steps without drafts are scheduled before the last one is back, so that the device never
            waits for the next.
    """

    def __init__(self, max_drafts: int, *, runs_ahead: bool = True) -> None:
        self._max_drafts = max_drafts
        self._runs_ahead = runs_ahead
        self._num_refusals = 0  # steps since the last check that had drafts which are likely right
        self.counts = DraftCounts()
        self.awaits_guesses = False

    @property
    def is_on(self) -> bool:
        """Whether there are drafts at all."""
        return self._max_drafts > 0

    def grant(self, decodes: Sequence[Child], num_fitting: int, costs: StepCosts) -> dict[Child, list[int]]:
        """Return the drafts that the children of a step check, of each a head of those that it has.

        Args:
            decodes: all children that are about to decode, whether their last step is back or not.
            num_fitting: most drafts that the step has room for, all children together.
            costs: what steps take.
        """
        num_decodes, decodes_s = len(decodes), costs.decodes_s(len(decodes))
        # Tokens that the decodes would bring in the time that a draft takes; 0 while nothing is known.
        price = MARGIN * costs.draft_s * num_decodes / decodes_s if decodes_s else 0.0
        grants: dict[Child, list[int]] = {}
        trial: dict[Child, list[int]] = {}
        gain = 0.0
        for child in decodes:
            offered = child.draft_token_ids
            if not offered:
                continue
            # The token drawn after the last draft still has to be within the request's length.
            left = child.request.max_num_tokens - len(child.token_ids) - 1
            most = min(len(offered), self._max_drafts, num_fitting, left)
            num_drafts, gain_here = num_paying(child.acceptance.rate, most, price)
            if most > 0 and not trial and child.acceptance.rate >= _TRIAL_RATE:
                trial[child] = offered[: min(most, _TRIAL_DRAFTS)]
            if num_drafts:
                grants[child] = offered[:num_drafts]
                num_fitting -= num_drafts
                gain += gain_here
        if self._runs_ahead and decodes_s:
            idle_s = _IDLE_SHARE * costs.decodes_s(0)
            if gain <= idle_s * num_decodes / decodes_s:
                grants = {}
        if not grants and trial:
            self._num_refusals += 1
            grants = trial if self._num_refusals >= _TRIAL_INTERVAL else {}
        if grants and not any(child.num_pending_tokens for child in grants):
            self._num_refusals = 0  # now they are checked, and not only awaited
        return grants

    def compare(self, child: Child, token_ids: list[int]) -> None:
        """Learn from a step without drafts: were the first of the child's guesses what it drew?"""
        if child.draft_token_ids and token_ids:
            child.acceptance.observe(1, int(child.draft_token_ids[0] == token_ids[0]))

    def want(self, child: Child, num_drafts: int, num_decodes: int, costs: StepCosts) -> int:
        """Return how many guesses a child's step asks for.

        Args:
            child: is about to draw.
            num_drafts: that the step checks.
            num_decodes: children that decode in the step, this one included.
            costs: what steps take.
        """
        del child, num_drafts, num_decodes, costs  # a look-up takes next to no time
        return self._max_drafts

    def observe_step(self, shape: StepShape, step_s: float) -> None:
        """Learn from what a finished step took; `StepCosts` has learned from it already."""

    def observe(self, child: Child, num_drafts: int, num_accepted: int) -> None:
        """Learn from a step that has checked drafts of a child."""
        child.acceptance.observe(num_drafts, num_accepted)
        child.request.num_draft_tokens += num_drafts
        child.request.num_accepted_tokens += num_accepted
        self.counts.count(num_drafts, num_accepted)


def num_paying(rate: float, most: int, price: float) -> tuple[int, float]:
    """Return how many drafts of a child pay, and the tokens that they bring beyond their price."""
    chance, num_paying, gain = 1.0, 0, 0.0
    while num_paying < most:
        chance *= rate
        if chance <= price:
            break
        num_paying += 1
        gain += chance - price
    return num_paying, gain
