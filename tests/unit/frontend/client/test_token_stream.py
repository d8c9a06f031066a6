"""However tokens arrive and whenever they are read: each is delivered once and in order, and no queue grows."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.frontend.client.journal import JournalEntry
from pagewire.frontend.client.token_stream import Mailbox, TokenStream
from pagewire.ipc.errors import ProtocolError
from pagewire.ipc.outputs import FinishReason, RequestEnd, RequestStart, TokenDelta, TokenLogprobs
from pagewire.ipc.requests import AddRequest, GenerateTask, TokenInputs
from pagewire.ipc.sampling_params import Sampling

NUM_TOKENS = 12


def request(n: int = 1) -> AddRequest:
    task = GenerateTask(sampling=Sampling(), n=n)
    return AddRequest(request_id=1, inputs=TokenInputs(prompt_token_ids=[1]), task=task)


def delta(child: int, start: int, stop: int) -> TokenDelta:
    tokens = list(range(100 * child + start, 100 * child + stop))
    return TokenDelta(
        request_id=1,
        child=child,
        first_index=start,
        token_ids=tokens,
        logprobs=[TokenLogprobs(token, -1.0, 1) for token in tokens],
        finish_reason=FinishReason.LENGTH if stop == NUM_TOKENS else None,
        ends_in_text=stop == NUM_TOKENS,
    )


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 3))
def test_every_token_is_delivered_once_and_in_order(seed, n):
    rng = random.Random(seed)

    async def run() -> None:
        mailbox = Mailbox(request(n), lambda message: None, lambda request_id: None, Mailbox.notify)
        stream = TokenStream(mailbox)
        read: list[TokenDelta] = []
        known = [0] * n
        while mailbox.end is None:
            child = rng.choice([child for child in range(n) if known[child] < NUM_TOKENS])
            start = rng.randint(0, known[child])  # some of it may have come before
            stop = rng.randint(start, NUM_TOKENS)
            mailbox.put_delta(delta(child, start, stop))
            known[child] = max(known[child], stop)
            if known == [NUM_TOKENS] * n:
                mailbox.put_end(RequestEnd(request_id=1))
            assert len(mailbox._pending) <= n
            if mailbox._pending and rng.random() < 0.5:
                read.append(await anext(stream))
        read += [event async for event in stream]
        for child in range(n):
            events = [event for event in read if event.child == child]
            expected = list(range(100 * child, 100 * child + NUM_TOKENS))
            assert [token for event in events for token in event.token_ids] == expected
            assert [entry.token_id for event in events for entry in event.logprobs] == expected
            assert [event.finish_reason for event in events if event.finish_reason is not None] == [FinishReason.LENGTH]
            assert all(event.ends_in_text == (event.finish_reason is not None) for event in events)
            assert mailbox.entry.output_token_ids[child] == expected

    asyncio.run(run())


def test_journal_refuses_gaps_and_children_that_there_are_not():
    entry = JournalEntry(request())
    with pytest.raises(ProtocolError, match="left out 2 tokens of child 0 at index 0"):
        entry.record(delta(0, 2, 3))
    with pytest.raises(ProtocolError, match="child 1; n is 1"):
        entry.record(delta(1, 0, 1))


def test_journal_passes_over_what_comes_after_a_childs_end():
    entry = JournalEntry(request())
    assert entry.record(delta(0, 0, NUM_TOKENS)) is not None
    assert entry.record(delta(0, 0, NUM_TOKENS)) is None
    assert entry.living_children == set()


def test_a_request_is_added_again_with_the_adapter_that_it_began_with():
    async def run() -> None:
        mailbox = Mailbox(request(), lambda message: None, lambda request_id: None, Mailbox.notify)
        assert mailbox.addition().adapter_digest == ""
        mailbox.put_start(RequestStart(request_id=1, adapter_digest="d"))
        mailbox.put_delta(delta(0, 0, 3))
        assert mailbox.addition().adapter_digest == "d"

    asyncio.run(run())
