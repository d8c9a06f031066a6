"""Which child computes how many tokens in the next step: a pure state machine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pagewire.ipc.config import StepLimits

from .drafts.speculation import DraftPolicy
from .kv.cache_manager import CacheManager, Extension
from .preemption import choose_victim, preempt
from .request import NO_ROW, Child, ChildStatus, Request
from .scheduled import ScheduledChild, SchedulerOutput, num_runnable_tokens, reaches_last, share
from .steps.costs import StepCosts
from .steps.room import StepRoom
from .waiting_queue import WaitingQueue


class Scheduler:
    """Hands out a step's token budget.

    There is no prefill phase and no decode phase: every child has num_computed_tokens that catch up with the tokens it
    has, the ones that steps in flight will draw included. A long prompt takes what the budget leaves and goes on in
    the next step; a decode is a child that lacks one token. Running children come first, decodes before prefills, then
    waiting ones. A step's prefills are cut short where they would hold its decodes up, see `StepRoom`.

    A child that decodes may have drafts checked behind its last token, as many as pay. How many are right is not known
    before the step is back: until then nobody is scheduled, since what is not there would need a step of its own. So it
    is where a draft model guesses behind a child's draw: it gets slots for their keys and values, if they are free.

    In a pipeline, each step is a micro-batch: a child is in one step in flight at most, and each step takes its part of
    the running children, so that every stage has a step to compute. The children take turns.

    Args:
        limits: of a step.
        cache: gives and takes blocks.
        target_itl_s: see `StepRoom`.
        long_prefill_token_threshold: most tokens of one prompt in a step; 0: no limit.
        drafts: says how many drafts pay.
        num_micro_batches: steps in flight among which the running children are divided; 1: each step may have all.

    Attributes:
        max_num_seqs: children that may run at once.
        running: in order of admission; with micro-batches, those first that had their last turn the longest ago.
        alone: the one request that may run, None while all may.
        retired_row_ids: rows that the executor holds and no child has any more.
        num_preemptions: counter.
        prefix_cache_queries, prefix_cache_hits: counters, in tokens, of first admissions.
    """

    def __init__(
        self,
        limits: StepLimits,
        cache: CacheManager,
        *,
        target_itl_s: float,
        drafts: DraftPolicy,
        num_micro_batches: int = 1,
        long_prefill_token_threshold: int = 0,
    ) -> None:
        self._max_prefill_tokens = long_prefill_token_threshold or math.inf
        self._max_num_batched_tokens = limits.max_num_batched_tokens
        self._target_itl_s = target_itl_s
        self._drafts = drafts
        self._num_micro_batches = num_micro_batches
        # Every running child gets a token a step: more of them than the budget has would leave the last ones waiting
        # amid their answers.
        self.max_num_seqs = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        self._cache = cache
        self.waiting = WaitingQueue()
        self.running: dict[Child, None] = {}
        self.alone: Request | None = None
        self.retired_row_ids: list[int] = []
        self.num_preemptions = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0

    def schedule(self, now: float, costs: StepCosts) -> SchedulerOutput:
        """Decide one step. Its children count the step's tokens as computed from here on.

        Args:
            now: seconds on the caller's monotonic clock.
            costs: what steps take, as far as it was measured.

        Returns:
            The step; empty when nothing can run before a step in flight is back, or when the only children that could
            have run were preempted.
        """
        output = SchedulerOutput()
        if self._drafts.is_on and self._awaits_drafts():
            return output
        room = StepRoom(self._max_num_batched_tokens, self._target_itl_s, costs, self._max_prefill_tokens)
        if self._num_micro_batches > 1:
            room.num_rows = self._part_of(len(self.running))
        if not self._schedule_running(output, room, costs):
            return output
        for item in output.scheduled:
            self._advance(item)
        if self.waiting and not output.has_preempted:
            if self._num_micro_batches > 1:
                # Those that wait count as well: a burst of requests is spread over the stages from the beginning.
                num_soon = min(len(self.running) + len(self.waiting), self.max_num_seqs)
                room.num_rows = self._part_of(num_soon) - len(output.scheduled)
            self._schedule_waiting(output, room, now, costs)
        if self._num_micro_batches > 1:
            self._end_turn(output)
        output.num_scheduled_tokens = self._max_num_batched_tokens - room.num_tokens
        output.shape = room.shape
        return output

    @property
    def can_go_on(self) -> bool:
        """Whether a child runs, or waits and may run."""
        return bool(self.running) or self.waiting.peek() is not None

    def add(self, child: Child) -> None:
        """Let a new or preempted child wait for admission."""
        self.waiting.push(child)

    def fork(self, parent: Child, child: Child) -> None:
        """Let a new child start where its parent is: on shared blocks, or waiting if the parent was preempted."""
        if parent.status is ChildStatus.RUNNING:
            child.move_to(ChildStatus.RUNNING)
            self._cache.fork(parent, child)
            self.running[child] = None
        else:
            self.add(child)

    def finish(self, child: Child) -> None:
        """Take a child out, wherever it is; one that is finished already is passed over."""
        if child.status is ChildStatus.FINISHED:
            return
        if child.status is ChildStatus.RUNNING:
            del self.running[child]
            self._cache.free(child)
        elif not child.request.is_held:
            self.waiting.discard(child)
        child.move_to(ChildStatus.FINISHED)
        self._retire(child.row_id)
        child.row_id = NO_ROW

    def preempt(self, child: Child) -> None:
        """Send a running child back to waiting, because its blocks are needed elsewhere."""
        self._send_back(child)
        child.request.num_preemptions += 1
        self.num_preemptions += 1

    def isolate(self, request: Request | None) -> None:
        """Run the children of one request alone from the next step on; with None, all again."""
        if request is self.alone:
            return
        self.alone = request
        self.waiting.isolate(request)
        if request is not None:
            for child in [child for child in self.running if child.request is not request]:
                self._send_back(child)

    def start_over(self) -> None:
        """Send all running children back to waiting: the executor that held their rows and blocks is gone."""
        for child in list(self.running):
            self._send_back(child)
        self.retired_row_ids.clear()

    def _send_back(self, child: Child) -> None:
        del self.running[child]
        self._retire(preempt(child, self._cache))
        self.waiting.push(child)

    def _part_of(self, num_children: int) -> int:
        return -(-num_children // self._num_micro_batches)

    def _end_turn(self, output: SchedulerOutput) -> None:
        for item in output.scheduled:
            del self.running[item.child]
            self.running[item.child] = None

    def _retire(self, row_id: int) -> None:
        if row_id != NO_ROW:
            self.retired_row_ids.append(row_id)

    def _awaits_drafts(self) -> bool:
        """Whether a step in flight has to be back before any other: it has drafts or makes guesses.

        With micro-batches, the others go on.
        """
        return self._num_micro_batches == 1 and any(
            child.num_drafts_in_flight or child.awaits_guesses for child in self.running
        )

    def _schedule_running(self, output: SchedulerOutput, room: StepRoom, costs: StepCosts) -> bool:
        """Give running children their shares; return False if drafts are to be had once the step in flight is back."""
        # Decodes first: a token of each costs little, and nobody's stream stands still for another one's long prompt.
        decoding: list[Child] = []
        prefilling: list[Child] = []
        for child in self.running:
            if self._num_micro_batches > 1 and child.num_steps_in_flight:
                continue
            num_tokens = num_runnable_tokens(child)
            if num_tokens > 1:
                prefilling.append(child)
            elif num_tokens:
                decoding.append(child)
        grants: dict[Child, list[int]] = {}
        if self._drafts.is_on:  # no other decode loses its place to them
            decodes = decoding[: int(min(len(decoding), room.num_rows))]
            grants = self._drafts.grant(decodes, room.num_tokens - len(decodes), costs)
            if any(child.num_pending_tokens for child in grants):
                return False  # the step in flight draws the tokens that they are guesses of
        for child in decoding:
            if not room.is_full:
                self._schedule_child(child, 1, output, room, costs, grants.get(child, ()))
        # By the rule of admission, not in its order: a prompt of higher priority does not wait for a long one.
        prefilling.sort(key=lambda child: child.order_key)
        for child in prefilling:
            num_tokens = room.tokens_for(child.num_computed_tokens, num_runnable_tokens(child))
            if num_tokens:
                self._schedule_child(child, num_tokens, output, room, costs)
        return True

    def _num_wanted(self, child: Child, num_tokens: int, num_drafts: int, costs: StepCosts) -> int:
        """Return how many guesses a child's share of the step asks for."""
        request = child.request
        if not self._drafts.is_on or request.pooling or not request.is_forked or not reaches_last(child, num_tokens):
            return 0
        num_running = len(self.running)
        # As many as the next step has room for beside its decodes.
        num_fitting = max(self._max_num_batched_tokens - num_running, 0)
        return min(self._drafts.want(child, num_drafts, num_running, costs), num_fitting)

    def _schedule_child(
        self,
        child: Child,
        num_tokens: int,
        output: SchedulerOutput,
        room: StepRoom,
        costs: StepCosts,
        drafts: Sequence[int] = (),
    ) -> None:
        """Give a running child its share, unless it was or has to be preempted. Drafts that don't fit are left out."""
        if output.has_preempted and child not in self.running:
            return
        num_wanted = self._num_wanted(child, num_tokens, len(drafts), costs)
        extension = self._try_extend(child, num_tokens + len(drafts), num_wanted)
        if drafts and extension is None:
            drafts = ()
            extension = self._try_extend(child, num_tokens, num_wanted)
        while extension is None:
            self._preempt_one(output, room)
            if child not in self.running:
                return
            extension = self._cache.try_extend(child, num_tokens)
        output.scheduled.append(share(child, num_tokens, extension, drafts, num_wanted))
        room.take(child.num_computed_tokens, num_tokens + len(drafts), len(drafts))
        self._count_guesses(room, num_wanted)

    def _try_extend(self, child: Child, num_tokens: int, num_wanted: int) -> Extension | None:
        """Make room for a child's tokens, and for guesses behind them if it is there."""
        if num_wanted and self._drafts.awaits_guesses:
            extension = self._cache.try_extend(child, num_tokens + num_wanted)
            if extension is not None:
                return extension
        return self._cache.try_extend(child, num_tokens)

    def _count_guesses(self, room: StepRoom, num_guesses: int) -> None:
        if self._drafts.awaits_guesses:  # those of others take no time to speak of
            room.shape.num_guesses += num_guesses

    def _preempt_one(self, output: SchedulerOutput, room: StepRoom) -> None:
        """Preempt a victim; its share of the step, if it has one already, becomes room again."""
        victim = choose_victim(self.running)
        self.preempt(victim)
        output.has_preempted = True
        for index, item in enumerate(output.scheduled):
            if item.child is victim:
                # Nothing else of the item needs undoing: counts and cache entries are made once the list is final.
                del output.scheduled[index]
                room.give_back(item.num_computed_tokens, item.num_scheduled_tokens, len(item.draft_token_ids))
                self._count_guesses(room, -item.num_wanted_drafts)
                return

    def _schedule_waiting(self, output: SchedulerOutput, room: StepRoom, now: float, costs: StepCosts) -> None:
        num_seqs = sum(child.num_seqs for child in self.running)
        while (child := self.waiting.peek()) is not None and room.has_room():
            num_seqs += child.num_seqs
            # Whoever can't be admitted holds up those behind, or a large request would never find its room.
            # A fork that is larger than the limit runs alone.
            is_too_many = num_seqs > self.max_num_seqs and bool(self.running)
            if child.num_steps_in_flight or is_too_many or not self._try_admit(child):
                break
            self.waiting.pop()
            self._start(child, output, now)
            # Only now is it known how much the prefix cache gave.
            num_tokens = room.tokens_for(child.num_computed_tokens, len(child.token_ids) - child.num_computed_tokens)
            num_wanted = self._num_wanted(child, num_tokens, 0, costs)
            self._try_extend(child, num_tokens, num_wanted)  # what it gets is told with the row
            item = share(child, num_tokens, Extension([]), num_wanted=num_wanted)
            room.take(item.num_computed_tokens, num_tokens)
            self._count_guesses(room, num_wanted)
            self._advance(item)
            output.scheduled.append(item)

    def _try_admit(self, child: Child) -> bool:
        # A fork soon needs a block for every child but one. Without others to wait for, it takes its turns instead.
        num_reserved = child.num_seqs - 1 if self.running else 0
        return self._cache.try_admit(child, num_reserved_blocks=num_reserved)

    def _start(self, child: Child, output: SchedulerOutput, now: float) -> None:
        child.move_to(ChildStatus.RUNNING)
        self.running[child] = None
        request = child.request
        if not request.was_scheduled:
            request.was_scheduled = True
            output.beginners.append(request)
        if request.first_scheduled_s is None:
            request.first_scheduled_s = now
            request.num_cached_tokens = child.num_computed_tokens
            output.num_new_requests += 1
            output.num_new_tokens += request.num_prompt_tokens
            self.prefix_cache_queries += request.num_prompt_tokens
            self.prefix_cache_hits += child.num_computed_tokens

    def _advance(self, item: ScheduledChild) -> None:
        child = item.child
        num_drafts = len(item.draft_token_ids)
        # Of the drafts' keys and values, those count that are accepted, once that is known.
        child.num_computed_tokens += item.num_scheduled_tokens - num_drafts
        child.num_drafts_in_flight = num_drafts
        child.awaits_guesses = self._drafts.awaits_guesses and item.num_wanted_drafts > 0
        child.num_steps_in_flight += 1
        if item.num_draws:
            child.num_pending_tokens += 1
        # A token that a step in flight draws is confirmed, and its block offered, when it is committed.
        if child.num_computed_tokens <= len(child.token_ids):
            self._cache.register_full_blocks(child)
