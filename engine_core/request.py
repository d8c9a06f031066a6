"""What the core knows of a request and its children, and the states that a child may pass through."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Literal

import msgspec

from pagewire.ipc.block_hash import BlockDigest, Extras, cache_extras
from pagewire.ipc.channels import ClientId
from pagewire.ipc.outputs import TokenLogprobs
from pagewire.ipc.requests import AddRequest, EmbedTask, GenerateTask
from pagewire.ipc.sampling_params import Sampling

from .drafts.acceptance import Acceptance

if TYPE_CHECKING:
    from .grammar.matcher import ChildMatcher

RequestKey = tuple[ClientId, int]
"""Ids are unique in their connection only, so a request is found by (client, request_id)."""

OrderKey = tuple[int, int, int]
"""(priority, arrival, child): smaller runs first, the largest is preempted first."""

NO_ROW = 0
"""The row_id of a child that the executor does not hold."""


_NO_TOKENS = GenerateTask(sampling=Sampling(), max_tokens=0)
"""What a request that is embedded asks for in the way of tokens."""


class ChildStatus(enum.Enum):
    """Where a child is in its life."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()  # waiting again; its outputs are kept, its blocks are not
    FINISHED = enum.auto()


_NEXT_STATUSES = {
    ChildStatus.WAITING: {ChildStatus.RUNNING, ChildStatus.FINISHED},
    ChildStatus.RUNNING: {ChildStatus.PREEMPTED, ChildStatus.FINISHED},
    ChildStatus.PREEMPTED: {ChildStatus.RUNNING, ChildStatus.FINISHED},
    ChildStatus.FINISHED: set[ChildStatus](),
}


class Request:
    """A client's request: what its children share. Ends with exactly one `RequestEnd`.

    Attributes:
        num_prompt_tokens: never changes, also when outputs are recomputed after a preemption.
        max_num_tokens: prompt + output tokens at which a child ends by length.
        eos_token_ids: end tokens that give stop_reason None.
        end_token_ids: all end tokens; the others are reported as the stop_reason.
        label: the id that a user chose.
        arrival: the core's running number of the request; first come, first served goes by it.
        arrival_s, deadline_s: when it came, and when its time is over (None: never), on the loop's monotonic clock.
        adapter_id: load id of its LoRA adapter; 0: none.
        adapter_digest: of that adapter's files; empty: of none.
        sampling: what rows draw with; without prompt logprobs once those were told.
        pooling: how the prompt becomes one vector; empty: tokens are drawn.
        normalizes: whether that vector is scaled to length 1.
        is_started: whether the prefill is complete and was told, by this core or by one before it.
        children: by index, the finished ones too. Child 0 alone until the prefill's draws are committed, then all n; of
            a request that is resumed, those that an earlier core left unfinished.
        is_forked: whether every child exists; with n = 1 from the start.
        num_unfinished: children without a finish reason.
        stopped_children: ended by the client before they had a token; they end with their first one.
        first_scheduled_s: when its first step was scheduled; None while it waits for that.
        was_scheduled: whether it was in a step of this core.
        is_readded: an earlier core had it, and part of its time is gone.
        grammar: the language of its outputs; None: any.
        is_held: whether it waits for its grammar: not scheduled yet, and its client was not told that it is taken.
        num_draft_tokens, num_accepted_tokens: guesses that were checked for its children, and those that were right.
        num_cached_tokens: prompt tokens found in the prefix cache at first admission.
        prompt_logprobs: for prompt positions 1, 2, ... as far as chunks brought them.
    """

    __slots__ = (
        "adapter_digest",
        "adapter_id",
        "arrival",
        "arrival_s",
        "cache_salt",
        "children",
        "client",
        "deadline_s",
        "end_token_ids",
        "eos_token_ids",
        "extras",
        "first_scheduled_s",
        "grammar",
        "is_forked",
        "is_held",
        "is_readded",
        "is_started",
        "label",
        "max_num_tokens",
        "n",
        "normalizes",
        "num_accepted_tokens",
        "num_cached_tokens",
        "num_draft_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_unfinished",
        "pooling",
        "prompt_logprobs",
        "request_id",
        "sampling",
        "stopped_children",
        "was_scheduled",
    )

    def __init__(
        self,
        client: ClientId,
        message: AddRequest,
        *,
        arrival: int,
        now: float,
        max_model_len: int,
        has_priority: bool,
        adapter_id: int = 0,
        adapter_digest: str = "",
    ) -> None:
        task = message.task if isinstance(message.task, GenerateTask) else _NO_TOKENS
        embed = message.task if isinstance(message.task, EmbedTask) else None
        self.pooling: Literal["", "last", "mean"] = "" if embed is None else embed.pooling
        self.normalizes = embed is not None and embed.normalize
        self.client = client
        self.label = message.label
        self.request_id = message.request_id
        self.sampling = task.sampling
        self.n = task.n
        self.eos_token_ids = frozenset(task.eos_token_ids)
        self.end_token_ids = self.eos_token_ids | frozenset(task.stop_token_ids)
        self.num_prompt_tokens = len(message.inputs.prompt_token_ids)
        room = max_model_len - self.num_prompt_tokens
        self.max_num_tokens = self.num_prompt_tokens + (room if task.max_tokens is None else min(task.max_tokens, room))
        self.cache_salt = message.cache_salt
        self.adapter_id = adapter_id
        self.adapter_digest = adapter_digest
        adapter = str(adapter_id) if adapter_id else ""
        self.extras: Extras = cache_extras(salt=message.cache_salt, adapter=adapter)
        self.arrival = arrival
        self.arrival_s = now
        self.deadline_s = None if message.timeout_s is None else now + message.timeout_s
        self.is_readded = message.is_readded
        self.first_scheduled_s: float | None = None
        self.was_scheduled = False
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_draft_tokens = self.num_accepted_tokens = 0
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.is_started = False
        self.grammar = task.grammar
        self.is_held = False
        self.is_forked = task.n == 1
        self.num_unfinished = task.n
        self.stopped_children: set[int] = set()
        self.children: dict[int, Child] = {}
        priority = message.priority if has_priority else 0
        if message.resumed_children:
            self._resume(message, priority)
        else:
            self.children[0] = Child(self, 0, list(message.inputs.prompt_token_ids), (priority, arrival, 0))

    def start(self) -> None:
        """Note that the prefill is complete. The prompt's logprobs are told once: no row computes them again."""
        self.is_started = True
        if self.sampling.num_prompt_logprobs is not None:
            self.sampling = msgspec.structs.replace(self.sampling, num_prompt_logprobs=None)

    @property
    def key(self) -> RequestKey:
        """What the request is found by."""
        return (self.client, self.request_id)

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether every prompt token has to be computed, whatever the prefix cache has."""
        return self.pooling == "mean" or self.needs_prompt_logprobs

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether prompt positions still lack their logprob, so that the whole prompt must be computed."""
        wanted = self.sampling.num_prompt_logprobs is not None
        return wanted and len(self.prompt_logprobs) < self.num_prompt_tokens - 1

    def _resume(self, message: AddRequest, priority: int) -> None:
        """Take up the children that an earlier core left unfinished, where its client saw them last."""
        self.start()
        self.is_forked = True
        self.first_scheduled_s = self.arrival_s  # it has waited its time, in that core
        self.num_unfinished = len(message.resumed_children)
        for resumed in message.resumed_children:
            index, token_ids = resumed.child, [*message.inputs.prompt_token_ids, *resumed.output_token_ids]
            self.children[index] = Child(self, index, token_ids, (priority, self.arrival, index))


class Child:
    """One answer of a request: the unit that is scheduled, preempted and finished.

    Ownership of its tokens, as half-open intervals:
        [0, num_computed_tokens)              KV is written, by steps that are done or in flight
        [0, len(token_ids))                   committed: their ids are known here
        [len(token_ids), + num_pending_tokens)  drawn by steps in flight; the executor alone knows the ids

    Attributes:
        row_id: the executor's row, or NO_ROW.
        block_ids: the block table.
        digests: of the full blocks of token_ids, as far as they were needed.
        num_registered_blocks: blocks [0, this) were offered to the prefix cache.
        num_own_slots: positions [num_computed_tokens, this) may be written as they are: no other child has the blocks.
        num_pending_tokens: tokens that steps in flight will draw for it.
        num_steps_in_flight: unanswered steps that contain it.
        num_told_tokens: of token_ids, those that the executor was sent, with the row or as what it had drawn.
        draft_token_ids: guesses of what follows token_ids, as the executor's last result brought them.
        num_drafts_in_flight: drafts that the step in flight checks; until it is back, nothing else is computed.
        awaits_guesses: whether a draft model guesses for it in the step in flight; likewise.
        acceptance: how often drafts were right.
        matcher: its place in the request's grammar, by token_ids; None: it has none.
    """

    __slots__ = (
        "acceptance",
        "awaits_guesses",
        "block_ids",
        "digests",
        "draft_token_ids",
        "index",
        "matcher",
        "num_computed_tokens",
        "num_drafts_in_flight",
        "num_own_slots",
        "num_pending_tokens",
        "num_registered_blocks",
        "num_steps_in_flight",
        "num_told_tokens",
        "order_key",
        "request",
        "row_id",
        "status",
        "token_ids",
    )

    def __init__(self, request: Request, index: int, token_ids: list[int], order_key: OrderKey) -> None:
        self.request = request
        self.index = index
        self.token_ids = token_ids
        self.order_key = order_key
        self.status = ChildStatus.WAITING
        self.row_id = NO_ROW
        self.block_ids: list[int] = []
        self.digests: list[BlockDigest] = []
        self.num_registered_blocks = 0
        self.num_own_slots = 0
        self.num_computed_tokens = 0
        self.num_pending_tokens = 0
        self.num_steps_in_flight = 0
        self.num_told_tokens = 0
        self.draft_token_ids: list[int] = []
        self.num_drafts_in_flight = 0
        self.awaits_guesses = False
        self.acceptance = Acceptance()
        self.matcher: ChildMatcher | None = None

    @property
    def num_output_tokens(self) -> int:
        """Committed output tokens."""
        return len(self.token_ids) - self.request.num_prompt_tokens

    @property
    def num_seqs(self) -> int:
        """How many of max_num_seqs it takes: a prefill counts for all the children that it will become."""
        return 1 if self.request.is_forked else self.request.n

    def move_to(self, status: ChildStatus) -> None:
        """Change the status; only the transitions of `_NEXT_STATUSES` are legal."""
        assert status in _NEXT_STATUSES[self.status], f"child can't go from {self.status} to {status}"
        self.status = status
