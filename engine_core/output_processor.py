"""From a step's result to the state of requests: the commit loop, and every way in which a request ends."""

from __future__ import annotations

from collections.abc import Iterable

from pagewire.ipc.errors import ErrorInfo, ProtocolError
from pagewire.ipc.outputs import FinishReason, TokenDelta, TokenLogprobs
from pagewire.ipc.steps import RowResult

from .clients.outbox import Outbox
from .deadlines import Deadlines
from .drafts.speculation import DraftPolicy
from .kv.cache_manager import CacheManager
from .pooled import scale_to_one
from .request import Child, ChildStatus, Request, RequestKey
from .scheduled import ScheduledChild
from .scheduler import Scheduler


class OutputProcessor:
    """Owns the living requests.

    Attributes:
        requests: every accepted request without its `RequestEnd`.
        deadlines: of those requests.
        num_prompt_tokens, num_generation_tokens: counters.
    """

    def __init__(self, scheduler: Scheduler, cache: CacheManager, outbox: Outbox, drafts: DraftPolicy) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._outbox = outbox
        self._drafts = drafts
        self.requests: dict[RequestKey, Request] = {}
        self.deadlines = Deadlines()
        self.num_prompt_tokens = 0
        self.num_generation_tokens = 0

    def accept(self, request: Request) -> None:
        """Take a valid request."""
        self.requests[request.key] = request
        self.deadlines.add(request)
        self.let_in(request)

    def hold(self, request: Request) -> None:
        """Keep a valid request that is not to be scheduled yet; it may end all the same."""
        request.is_held = True
        self.requests[request.key] = request
        self.deadlines.add(request)

    def let_in(self, request: Request) -> None:
        """Have a request scheduled that was held, or never was."""
        request.is_held = False
        self._outbox.accept(request)
        for child in request.children.values():
            if child.status is not ChildStatus.FINISHED:
                self._scheduler.add(child)

    def apply(self, scheduled: Iterable[ScheduledChild], results: Iterable[RowResult], now: float) -> None:
        """Commit what a step brought; what it brought for finished children is dropped.

        Raises:
            ProtocolError: the executor left out a row that draws, or drew another number of tokens.
        """
        by_row = {result.row_id: result for result in results}
        finished = ChildStatus.FINISHED  # members of an enum are slow to look up, for every row of every step
        for item in scheduled:
            child = item.child
            child.num_steps_in_flight -= 1
            if item.num_draws:
                child.num_pending_tokens -= 1
            if item.draft_token_ids:
                child.num_drafts_in_flight = 0
            if item.num_wanted_drafts:
                child.awaits_guesses = False
            if item.is_void or child.status is finished:
                continue
            result = by_row.get(item.row_id)
            if result is None:
                if item.num_draws or item.pools:
                    raise _wrong_number(item, 0)
            elif result.error is not None:
                self.end_early(child.request, FinishReason.ERROR, result.error)
            elif item.pools:
                self._apply_pooled(item, result)
            elif item.draft_token_ids:
                self._apply_drafts(item, result)
                self._apply_row(child, result, now)
            elif len(result.token_ids) != item.num_draws:
                raise _wrong_number(item, len(result.token_ids))
            else:
                self._drafts.compare(child, result.token_ids)
                self._apply_row(child, result, now)

    def end_early(self, request: Request, reason: FinishReason, error: ErrorInfo | None = None) -> None:
        """End a whole request by abort or error. Its unfinished children are reported, if it ever reported tokens."""
        if request.is_held:
            if error is not None and not request.is_readded:
                self._refuse(request, error)
                return
            self._outbox.accept(request)  # what ends was taken, or was refused
        for child in request.children.values():
            if child.status is not ChildStatus.FINISHED:
                self._scheduler.finish(child)
                if request.is_started:
                    self._report_end(child, reason)
        self._end(request, error)

    def stop_child(self, request: Request, index: int) -> None:
        """End one child because the client found a stop string; one that has ended is passed over."""
        if not request.is_started:
            if 0 <= index < request.n:
                request.stopped_children.add(index)
            return
        child = request.children.get(index)
        if child is not None and child.status is not ChildStatus.FINISHED:
            self._report_end(child, FinishReason.STOP)
            self._finish(child)

    def _apply_pooled(self, item: ScheduledChild, result: RowResult) -> None:
        """Tell the prompt's vector, and end its request.

        Raises:
            ProtocolError: the executor sent none.
        """
        request = item.child.request
        if not result.pooled:
            raise ProtocolError(f"row {item.row_id} was to be pooled, the executor sent no vector")
        self.num_prompt_tokens += request.num_prompt_tokens
        self._outbox.embedding(request, scale_to_one(result.pooled) if request.normalizes else result.pooled)
        self._finish(item.child)

    def _apply_drafts(self, item: ScheduledChild, result: RowResult) -> None:
        """Count the accepted drafts' keys and values as computed.

        Raises:
            ProtocolError: what the executor accepted were not the drafts.
        """
        drafts, token_ids = item.draft_token_ids, result.token_ids
        num_accepted = len(token_ids) - 1
        if not 0 <= num_accepted <= len(drafts) or token_ids[:num_accepted] != drafts[:num_accepted]:
            raise ProtocolError(f"row {item.row_id} was to check the drafts {drafts}, the executor sent {token_ids}")
        if item.child.status is ChildStatus.RUNNING:
            item.child.num_computed_tokens += num_accepted
        self._drafts.observe(item.child, len(drafts), num_accepted)

    def _apply_row(self, child: Child, result: RowResult, now: float) -> None:
        request = child.request
        if result.prompt_logprobs:
            _collect_prompt_logprobs(request, result)
        if not result.token_ids:
            return
        if not request.is_started:
            request.start()
            self.num_prompt_tokens += request.num_prompt_tokens
            self._outbox.start(request, now)
        if request.is_forked:
            child.draft_token_ids = result.next_draft_ids if child.status is ChildStatus.RUNNING else []
            self._commit(child, result.token_ids, result.logprobs)
            if child.matcher is not None and child.draft_token_ids and child.status is ChildStatus.RUNNING:
                child.draft_token_ids = child.matcher.valid_head(child.draft_token_ids)
        else:
            self._commit_fork(request, result)
        while request.stopped_children:
            self.stop_child(request, request.stopped_children.pop())

    def _commit_fork(self, request: Request, result: RowResult) -> None:
        """Bring the children 1..n-1 to life, each with the token drawn for it; all of them before any may end."""
        parent = request.children[0]
        priority, arrival, _ = parent.order_key
        for index in range(1, request.n):
            child = Child(request, index, list(parent.token_ids), (priority, arrival, index))
            child.matcher = None if parent.matcher is None else parent.matcher.copy()
            request.children[index] = child
            self._scheduler.fork(parent, child)
        request.is_forked = True
        for index, child in request.children.items():
            if child.status is ChildStatus.FINISHED:
                break  # one before it broke the grammar, and the request has failed
            self._commit(child, result.token_ids[index : index + 1], result.logprobs[index : index + 1])

    def _commit(self, child: Child, token_ids: list[int], logprobs: list[TokenLogprobs]) -> None:
        """Append a child's tokens up to the first that ends it: the one place where tokens come to be."""
        request, matcher = child.request, child.matcher
        known_ids = child.token_ids
        first_index = len(known_ids) - request.num_prompt_tokens
        finish_reason: FinishReason | None = None
        stop_reason: int | None = None
        ends_in_text = False
        for num_committed, token_id in enumerate(token_ids, start=1):
            if matcher is not None and not matcher.advance(token_id):
                del known_ids[request.num_prompt_tokens + first_index :]  # nobody was told of them
                self.end_early(request, FinishReason.ERROR, matcher.explain_refusal(token_id).to_info())
                return
            known_ids.append(token_id)
            is_done = matcher is not None and matcher.is_done
            if is_done or token_id in request.end_token_ids or len(known_ids) >= request.max_num_tokens:
                finish_reason, stop_reason = _end_of(child, token_id)
                ends_in_text = matcher is not None and is_done and not matcher.is_end(token_id)
                token_ids, logprobs = token_ids[:num_committed], logprobs[:num_committed]
                break
        self.num_generation_tokens += len(token_ids)
        self._cache.register_full_blocks(child)
        self._outbox.delta(
            request.client,
            TokenDelta(
                request_id=request.request_id,
                child=child.index,
                first_index=first_index,
                token_ids=token_ids,
                logprobs=logprobs,
                finish_reason=finish_reason,
                stop_reason=stop_reason,
                ends_in_text=ends_in_text,
            ),
        )
        if finish_reason is not None:
            self._finish(child)

    def _report_end(self, child: Child, reason: FinishReason) -> None:
        request = child.request
        delta = TokenDelta(
            request_id=request.request_id, child=child.index, first_index=child.num_output_tokens, finish_reason=reason
        )
        self._outbox.delta(request.client, delta)

    def _refuse(self, request: Request, error: ErrorInfo) -> None:
        """End a request that is held, as one that was never taken."""
        request.is_held = False
        del self.requests[request.key]
        self.deadlines.discard(request)
        self._outbox.refuse(request.client, request.request_id, error)

    def _finish(self, child: Child) -> None:
        self._scheduler.finish(child)
        child.request.num_unfinished -= 1
        if child.request.num_unfinished == 0:
            self._end(child.request, None)

    def _end(self, request: Request, error: ErrorInfo | None) -> None:
        del self.requests[request.key]
        request.is_held = False
        self.deadlines.discard(request)
        self._outbox.end(request, error)


def _end_of(child: Child, token_id: int) -> tuple[FinishReason, int | None]:
    """Return (finish_reason, stop_reason) of the token just appended, which ends the child."""
    request = child.request
    if token_id in request.eos_token_ids:
        return FinishReason.STOP, None
    if token_id in request.end_token_ids:
        return FinishReason.STOP, token_id
    if child.matcher is not None and child.matcher.is_done:
        return FinishReason.STOP, None
    return FinishReason.LENGTH, None


def _wrong_number(item: ScheduledChild, num_drawn: int) -> ProtocolError:
    return ProtocolError(f"row {item.row_id} was to draw {item.num_draws} tokens, the executor sent {num_drawn}")


def _collect_prompt_logprobs(request: Request, result: RowResult) -> None:
    """Append what a chunk brought, less what was collected before a preemption made it be computed again."""
    num_collected = len(request.prompt_logprobs)
    num_known = 1 + num_collected - result.prompt_logprobs_start  # position 0 has no logprob
    if num_known < 0:
        raise ProtocolError(
            f"prompt logprobs from position {result.prompt_logprobs_start} follow on position {num_collected}"
        )
    request.prompt_logprobs.extend(result.prompt_logprobs[num_known:])
