"""How many guesses are asked of a draft model: as many as pay, since each takes time to be made and to be checked."""

from __future__ import annotations

from pagewire.ipc.speculative_config import SpeculativeConfig

from .acceptance import Acceptance
from .request import Child
from .speculation import DraftPolicy
from .step_costs import StepCosts

# What guesses must bring beyond their cost: until they are made and checked, no step is sent ahead with the child.
_MARGIN = 1.2
# A child whose guesses do not pay asks for one again after so many draws: what runs beside it changes, and its text.
_PROBE_INTERVAL = 64


class DraftModelPolicy(DraftPolicy):
    """Asks for guesses where the tokens that they bring are worth the time; those that were made are all checked.

    How often guesses are right is a matter of the two models before it is one of the text: a child that has had none
    checked yet counts as those before it did.

    Args:
        max_drafts: most guesses for a child's next step.
    """

    def __init__(self, max_drafts: int) -> None:
        super().__init__(max_drafts)
        self.awaits_guesses = True
        self._overall = Acceptance.expecting(0.7)

    def grant(self, child: Child, num_decodes: int, num_fitting: int, costs: StepCosts) -> list[int]:
        """See `DraftPolicy.grant`."""
        del num_decodes, costs  # that checks pay was seen when the guesses were asked for
        left = child.request.max_num_tokens - len(child.token_ids) - 1
        return child.draft_token_ids[: max(0, min(num_fitting, left))]

    def want(self, child: Child, num_drafts: int, num_decodes: int, costs: StepCosts) -> int:
        """See `DraftPolicy.want`."""
        # If all drafts of this step are right, so many tokens are left to be guessed and one to be drawn behind them.
        num_tokens = len(child.token_ids) + child.num_pending_tokens + num_drafts + 1
        num_usable = min(self._max_drafts, child.request.max_num_tokens - num_tokens - 1)
        if num_usable <= 0:
            return 0
        acceptance = self._overall if child.acceptance.is_untried else child.acceptance
        num_wanted = _num_paying(acceptance.rate, num_usable, num_decodes, costs)
        if num_wanted == 0:
            child.num_passed_chances += 1
            if child.num_passed_chances < _PROBE_INTERVAL:
                return 0
            num_wanted = 1
        child.num_passed_chances = 0
        return num_wanted

    def observe(self, child: Child, num_drafts: int, num_accepted: int) -> None:
        """See `DraftPolicy.observe`."""
        super().observe(child, num_drafts, num_accepted)
        self._overall.observe(num_drafts, num_accepted)


def make_draft_policy(config: SpeculativeConfig) -> DraftPolicy:
    """Return the policy for whoever guesses."""
    if config.method == "draft_model":
        return DraftModelPolicy(config.num_tokens)
    return DraftPolicy(config.num_tokens)


def _num_paying(rate: float, most: int, num_decodes: int, costs: StepCosts) -> int:
    """Return how many guesses bring more tokens than the decodes would in the time that they take."""
    decodes_s = costs.decodes_s(num_decodes)
    if decodes_s == 0.0:
        return most  # nothing is known yet
    price = _MARGIN * (costs.guess_s + costs.draft_s) * num_decodes / decodes_s
    chance, num_paying = 1.0, 0
    while num_paying < most:
        chance *= rate
        if chance <= price:
            break
        num_paying += 1
    return num_paying
