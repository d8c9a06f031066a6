"""How many guesses are asked of a draft model: as many as pay, since each takes time to be made and to be checked."""

from __future__ import annotations

from collections.abc import Sequence

from pagewire.ipc.speculative_config import SpeculativeConfig

from .acceptance import Acceptance
from .request import Child
from .speculation import MARGIN, DraftPolicy, num_paying
from .step_costs import StepCosts

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
        super().__init__(max_drafts, runs_ahead=False)
        self.awaits_guesses = True
        self._overall = Acceptance.expecting(0.7)

    def grant(self, decodes: Sequence[Child], num_fitting: int, costs: StepCosts) -> dict[Child, list[int]]:
        """See `DraftPolicy.grant`."""
        del costs  # that checks pay was seen when the guesses were asked for
        grants: dict[Child, list[int]] = {}
        for child in decodes:
            left = child.request.max_num_tokens - len(child.token_ids) - 1
            drafts = child.draft_token_ids[: max(0, min(num_fitting, left))]
            if drafts:
                grants[child] = drafts
                num_fitting -= len(drafts)
        return grants

    def want(self, child: Child, num_drafts: int, num_decodes: int, costs: StepCosts) -> int:
        """See `DraftPolicy.want`."""
        # If all drafts of this step are right, so many tokens are left to be guessed and one to be drawn behind them.
        num_tokens = len(child.token_ids) + child.num_pending_tokens + num_drafts + 1
        num_usable = min(self._max_drafts, child.request.max_num_tokens - num_tokens - 1)
        if num_usable <= 0:
            return 0
        acceptance = self._overall if child.acceptance.is_untried else child.acceptance
        decodes_s = costs.decodes_s(num_decodes)
        # Tokens that the decodes would bring while a guess is made and checked; 0 while nothing is known.
        price = MARGIN * (costs.guess_s + costs.draft_s) * num_decodes / decodes_s if decodes_s else 0.0
        num_wanted, _ = num_paying(acceptance.rate, num_usable, price)
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


def make_draft_policy(config: SpeculativeConfig, *, runs_ahead: bool) -> DraftPolicy:
    """Return the policy for whoever guesses."""
    if config.method == "draft_model":
        return DraftModelPolicy(config.num_tokens)
    return DraftPolicy(config.num_tokens, runs_ahead=runs_ahead)
