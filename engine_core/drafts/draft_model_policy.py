"""How many guesses are asked of a draft model: as many as pay, since each takes time to be made and to be checked."""

from __future__ import annotations

from collections.abc import Sequence

from pagewire.ipc.speculative_config import SpeculativeConfig

from ..request import Child
from ..steps.costs import StepCosts, StepShape
from .acceptance import Acceptance
from .guess_costs import GuessCosts
from .speculation import MARGIN, DraftPolicy, num_paying

# Where guesses do not pay, one is asked for again after so many draws of all children together, and after twice as many
# the next time: what runs changes, and its text, but a draft model that is asked has to read all that it has missed.
_FIRST_PROBE, _MOST_BETWEEN_PROBES = 128, 4096
_NUM_TRIAL_GUESSES = 2  # for each child of a step while it is not known what they take


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
        self._costs = GuessCosts()
        self._num_refusals, self._num_between_probes = 0, _FIRST_PROBE

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
        del costs  # see `GuessCosts`
        # If all drafts of this step are right, so many tokens are left to be guessed and one to be drawn behind them.
        num_tokens = len(child.token_ids) + child.num_pending_tokens + num_drafts + 1
        num_usable = min(self._max_drafts, child.request.max_num_tokens - num_tokens - 1)
        if num_usable <= 0:
            return 0
        if self._costs.needs_plain_step(num_decodes):
            return 0
        price = self._costs.price(num_decodes)
        if price is None:
            return min(num_usable, _NUM_TRIAL_GUESSES)
        acceptance = self._overall if child.acceptance.is_untried else child.acceptance
        num_wanted, _ = num_paying(acceptance.rate, num_usable, MARGIN * price)
        return num_wanted or self._probe()

    def observe_step(self, shape: StepShape, step_s: float) -> None:
        """See `DraftPolicy.observe_step`."""
        self._costs.observe(shape, step_s)

    def observe(self, child: Child, num_drafts: int, num_accepted: int) -> None:
        """See `DraftPolicy.observe`."""
        super().observe(child, num_drafts, num_accepted)
        self._overall.observe(num_drafts, num_accepted)

    def _probe(self) -> int:
        """Return a guess to be asked for though it does not seem to pay, once in a while."""
        self._num_refusals += 1
        if self._num_refusals < self._num_between_probes:
            return 0
        self._num_refusals = 0
        self._num_between_probes = min(2 * self._num_between_probes, _MOST_BETWEEN_PROBES)
        return 1


def make_draft_policy(config: SpeculativeConfig, *, runs_ahead: bool) -> DraftPolicy:
    """Return the policy for whoever guesses."""
    if config.method == "draft_model":
        return DraftModelPolicy(config.num_tokens)
    return DraftPolicy(config.num_tokens, runs_ahead=runs_ahead)
