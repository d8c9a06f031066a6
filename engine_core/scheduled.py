"""A step as it was decided: each child's share of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from .kv.cache_manager import Extension
from .request import NO_ROW, Child, Request
from .steps.costs import StepShape


class ScheduledChild(msgspec.Struct, eq=False, gc=False):
    """One child's share of a step, kept until the step's result is back. One is made a row and step: hence the type.

    Attributes:
        num_computed_tokens: its tokens before the step.
        num_draws: 0 where tokens remain after the step; n where the prefill of n children ends; else 1.
        draft_token_ids: the last of its tokens in this step are these guesses.
        num_wanted_drafts: how many guesses are asked for in return.
        extension: blocks that the step needed.
        row_id: the executor's row, filled in by the step builder.
        is_void: what the step draws is worthless, because it read KV that was never written.
    """

    child: Child
    num_computed_tokens: int
    num_scheduled_tokens: int
    num_draws: int
    extension: Extension
    draft_token_ids: list[int] = []
    num_wanted_drafts: int = 0
    row_id: int = NO_ROW
    is_void: bool = False

    @property
    def is_masked(self) -> bool:
        """Whether what it draws has to follow a grammar."""
        return self.child.request.grammar is not None and self.num_draws > 0

    @property
    def pools(self) -> bool:
        """Whether the step ends a prompt that becomes a vector."""
        return bool(self.child.request.pooling) and (
            self.num_computed_tokens + self.num_scheduled_tokens == len(self.child.token_ids)
        )


@dataclass(slots=True)
class SchedulerOutput:
    """A step as it was decided; `step_builder` turns it into deltas for the executor.

    Attributes:
        num_new_requests, num_new_tokens: requests whose first step this is, and the tokens of their whole prompts.
        beginners: requests that this core has in a step for the first time, the resumed ones among them.
    """

    scheduled: list[ScheduledChild] = field(default_factory=list)
    num_scheduled_tokens: int = 0
    num_new_requests: int = 0
    num_new_tokens: int = 0
    beginners: list[Request] = field(default_factory=list)
    shape: StepShape = field(default_factory=StepShape)
    has_preempted: bool = False


def num_runnable_tokens(child: Child) -> int:
    """Return the tokens that a running child can compute before steps in flight are back."""
    if child.num_drafts_in_flight or child.awaits_guesses:
        return 0
    num_known_tokens = len(child.token_ids) + child.num_pending_tokens
    if child.num_pending_tokens:
        request = child.request
        # Its siblings are born with the tokens in flight; and past its length limit nothing is left to compute.
        if not request.is_forked or num_known_tokens >= request.max_num_tokens:
            return 0
    return num_known_tokens - child.num_computed_tokens


def reaches_last(child: Child, num_tokens: int) -> bool:
    """Say whether a child that computes so many tokens computes its last one."""
    return child.num_computed_tokens + num_tokens == len(child.token_ids) + child.num_pending_tokens


def share(
    child: Child, num_tokens: int, extension: Extension, drafts: Sequence[int] = (), num_wanted: int = 0
) -> ScheduledChild:
    """Return a child's share of a step.

    Args:
        child: as it is before the step.
        num_tokens: of its own, that it computes.
        extension: blocks that it got for them.
        drafts: that it computes behind them.
        num_wanted: guesses that are asked for.
    """
    num_draws = child.num_seqs if reaches_last(child, num_tokens) and not child.request.pooling else 0
    num_scheduled = num_tokens + len(drafts)
    return ScheduledChild(
        child, child.num_computed_tokens, num_scheduled, num_draws, extension, list(drafts), num_wanted
    )
