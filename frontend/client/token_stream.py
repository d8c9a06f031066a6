"""The tokens of one request on their way from the socket to whoever reads them.

The receive loop puts what arrives into a `Mailbox`; the reader holds a `TokenStream`. Between them at most one event a
child waits: a reader that falls behind finds its tokens merged, so that no queue grows with the steps it missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

import msgspec

from pagewire.ipc.errors import ErrorInfo, PagewireError, ProtocolError
from pagewire.ipc.outputs import Embedding, FinishReason, RequestEnd, RequestStart, TokenDelta
from pagewire.ipc.requests import AbortRequests, AddRequest

from .journal import JournalEntry


class Mailbox:
    """The client's side of a request: what came and was not read yet.

    Args:
        request: as it was sent.
        post: sends an abort.
        forget: takes the request off the client's list of live ones; called once.
        tell: has `notify` called, now or soon; called when the first change since then is made.
    """

    def __init__(
        self,
        request: AddRequest,
        post: Callable[[AbortRequests], None],
        forget: Callable[[int], None],
        tell: Callable[[Mailbox], None],
    ) -> None:
        self.entry = JournalEntry(request)
        self.start: RequestStart | None = None
        self.embedding: Embedding | None = None
        self.end: RequestEnd | None = None
        self.is_accepted = False
        self._clock = asyncio.get_running_loop().time
        self.submitted_at = self._clock()
        self.deadline = None if request.timeout_s is None else self.submitted_at + request.timeout_s
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.ended_at: float | None = None
        self._pending: dict[int, TokenDelta] = {}
        self._has_changed = False
        self._listener: Callable[[bool], None] | None = None
        self._change: asyncio.Future[None] | None = None
        self.has_ended = asyncio.Event()
        self._post = post
        self._forget = forget
        self._tell = tell

    def hand_over(
        self,
        post: Callable[[AbortRequests], None],
        forget: Callable[[int], None],
        tell: Callable[[Mailbox], None],
    ) -> None:
        """Belong to another list of live requests from now on; arguments as those of the class."""
        self._post = post
        self._forget = forget
        self._tell = tell

    def addition(self) -> AddRequest:
        """Return what to tell a core that has not heard of the request, or of what has become of it."""
        left_s = None if self.deadline is None else max(self.deadline - self._clock(), 0.0)
        return self.entry.addition(is_readded=self.is_accepted, timeout_s=left_s)

    def put_accepted(self) -> None:
        """The core took the request."""
        self.is_accepted = True
        self._note_change()

    def put_start(self, start: RequestStart) -> None:
        """The prefill is complete."""
        self.is_accepted = True
        if self.start is None:  # a resumed request starts again; the first report stays
            self.start = start
            self.entry.adapter_digest = start.adapter_digest
        self._note_change()

    def put_delta(self, delta: TokenDelta) -> None:
        """New tokens of a child. What was received before is dropped; a gap fails the request."""
        try:
            new = self.entry.record(delta)
        except ProtocolError as exc:
            self._post(AbortRequests(request_ids=[delta.request_id]))
            self.put_end(RequestEnd(request_id=delta.request_id, error=exc.to_info()))
            return
        if new is not None:
            self._add(new)
            self.last_token_at = self._clock()
            if self.first_token_at is None:
                self.first_token_at = self.last_token_at

    def put_embedding(self, embedding: Embedding) -> None:
        """What the prompt was embedded as; nothing but the end follows."""
        self.is_accepted = True
        self.embedding = embedding
        self.entry.living_children.clear()
        self._note_change()

    def put_end(self, end: RequestEnd) -> None:
        """The terminal message. Children that it leaves without a last delta were aborted."""
        assert self.end is None
        if end.error is None:
            for child in sorted(self.entry.living_children):
                self._add(TokenDelta(request_id=end.request_id, child=child, finish_reason=FinishReason.ABORT))
        self._finish(end)

    def fail(self, error: ErrorInfo) -> None:
        """End the request on this side alone, for example because its engine is gone."""
        self.put_end(RequestEnd(request_id=self.entry.request.request_id, error=error))

    def end_child(self, child: int) -> None:
        """The reader wants no more of this child; after the last one the request is over for this side."""
        self._pending.pop(child, None)
        if self.end is not None or child not in self.entry.living_children:
            return
        request_id = self.entry.request.request_id
        self.entry.living_children.discard(child)
        self._post(AbortRequests(children=[(request_id, child)]))
        if not self.entry.living_children:
            self._finish(RequestEnd(request_id=request_id))

    def close(self) -> None:
        """The reader went away: abort what still runs. Closing twice is fine."""
        self._pending.clear()
        if self.end is None:
            request_id = self.entry.request.request_id
            self._post(AbortRequests(request_ids=[request_id]))
            self._finish(RequestEnd(request_id=request_id))

    def take(self) -> TokenDelta | None:
        """Return the event that waits longest, None if none waits."""
        if not self._pending:
            return None
        return self._pending.pop(next(iter(self._pending)))

    def listen(self, listener: Callable[[bool], None] | None) -> None:
        """Have `listener(has_ended)` called after each change, without a task in between; None: no more."""
        self._listener = listener

    async def wait(self) -> None:
        """Return after the next change."""
        self._change = asyncio.get_running_loop().create_future()
        await self._change

    def notify(self) -> None:
        """Tell those who wait for a change."""
        self._has_changed = False
        if self._listener is not None:
            self._listener(self.end is not None)
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    def _note_change(self) -> None:
        if not self._has_changed:
            self._has_changed = True
            self._tell(self)

    def _add(self, delta: TokenDelta) -> None:
        self.is_accepted = True
        waiting = self._pending.get(delta.child)
        self._pending[delta.child] = delta if waiting is None else _merge(waiting, delta)
        self._note_change()

    def _finish(self, end: RequestEnd) -> None:
        self.end = end
        self.ended_at = self._clock()
        self.has_ended.set()
        self._forget(end.request_id)
        self._note_change()


class TokenStream:
    """The answer to one request: `TokenDelta` after `TokenDelta`, several children mixed.

    Iterate it with `async for`; it ends after the last child's last delta, or raises what the request failed of.
    Leaving it early aborts the request: by `close`, at the end of `async with`, or when the stream is dropped. A
    cancelled `__anext__` loses nothing; iteration may go on after it. One reader at a time.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._loop = asyncio.get_running_loop()

    @property
    def request(self) -> AddRequest:
        """The request as it was sent."""
        return self._mailbox.entry.request

    @property
    def start(self) -> RequestStart | None:
        """Facts of the prefill (cached tokens, time in the queue, prompt logprobs); there from the first token on."""
        return self._mailbox.start

    @property
    def embedding(self) -> Embedding | None:
        """What an `EmbedTask` gave; there before the end."""
        return self._mailbox.embedding

    @property
    def end(self) -> RequestEnd | None:
        """The terminal message, once it came."""
        return self._mailbox.end

    @property
    def submitted_at(self) -> float:
        """When the request was sent, in seconds of the event loop's clock; so are the other times."""
        return self._mailbox.submitted_at

    @property
    def first_token_at(self) -> float | None:
        """When the first token came, whenever it was read."""
        return self._mailbox.first_token_at

    @property
    def last_token_at(self) -> float | None:
        """When the latest tokens came."""
        return self._mailbox.last_token_at

    @property
    def ended_at(self) -> float | None:
        """When the request was over for this side."""
        return self._mailbox.ended_at

    async def accepted(self) -> None:
        """Wait until the engine took the request.

        Raises:
            PagewireError: it was refused, or failed before it was taken.
        """
        mailbox = self._mailbox
        while not mailbox.is_accepted:
            if mailbox.end is not None:
                _raise_error_of(mailbox.end)
                return
            await mailbox.wait()

    async def ended(self) -> None:
        """Wait for the end without reading: what comes until then waits merged, and costs next to nothing."""
        await self._mailbox.has_ended.wait()

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> TokenDelta:
        mailbox = self._mailbox
        while (delta := mailbox.take()) is None:
            if mailbox.end is not None:
                _raise_error_of(mailbox.end)
                raise StopAsyncIteration
            await mailbox.wait()
        return delta

    def take(self) -> TokenDelta | None:
        """Return what waits longest, as `__anext__` does; None if nothing waits now."""
        return self._mailbox.take()

    def listen(self, listener: Callable[[bool], None] | None) -> None:
        """Have `listener` called on the event loop whenever there may be something to `take`, or the end came.

        It is told whether the end came, and must not raise. None takes it away. It comes instead of `async for`, for
        those who can't afford a task.
        """
        self._mailbox.listen(listener)

    def raise_error(self) -> None:
        """Raise what the request failed of, if it did."""
        if self._mailbox.end is not None:
            _raise_error_of(self._mailbox.end)

    def end_child(self, child: int) -> None:
        """Take no more tokens of one child, as a stop string in its text ended it; the others go on."""
        self._mailbox.end_child(child)

    def close(self) -> None:
        """Abort the request if it still runs. Call it on the event loop's thread."""
        self._mailbox.close()

    async def aclose(self) -> None:
        """The same, for `contextlib.aclosing`."""
        self.close()

    async def __aenter__(self) -> TokenStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Dropped without close, on whatever thread: a loop left by `break`, a cancelled task.
        if self._mailbox.end is None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._mailbox.close)


def _merge(earlier: TokenDelta, later: TokenDelta) -> TokenDelta:
    # The lists came with the message and belong to this side alone, so growing one in place is safe and linear.
    earlier.token_ids.extend(later.token_ids)
    earlier.logprobs.extend(later.logprobs)
    if later.finish_reason is None:
        return earlier
    return msgspec.structs.replace(
        earlier,
        finish_reason=later.finish_reason,
        stop_reason=later.stop_reason,
        ends_in_text=later.ends_in_text,
    )


def _raise_error_of(end: RequestEnd) -> None:
    if end.error is not None:
        raise PagewireError.from_info(end.error)
