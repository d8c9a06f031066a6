"""A scripted engine core: the core's side of the wire protocol on the test's own event loop, over real sockets.

By default it answers each request by itself: token i of child c is `answer(request)[c][i]`, one token of every living
child a step, until the list, max_tokens or an end token ends it. `num_steps` and `allow_steps` hold it back. With
`answers_itself=False` the test sends every message by hand.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq
import zmq.asyncio

from pagewire.ipc.codec import PROTOCOL_VERSION, client_messages, encode
from pagewire.ipc.errors import ErrorInfo, PagewireError, ProtocolError
from pagewire.ipc.outputs import (
    CoreMessage,
    Embedding,
    EngineInfo,
    FinishReason,
    Goodbye,
    Ready,
    RequestEnd,
    RequestStart,
    StepOutputs,
    StepStats,
    TokenDelta,
    TokenLogprobs,
    UtilityResult,
)
from pagewire.ipc.requests import AbortRequests, AddRequest, CallUtility, ClientMessage, EmbedTask, Hello, Ping
from pagewire.ipc.validation import RequestLimits, validate_request

M = TypeVar("M")

Answer = Callable[[AddRequest], list[list[int]]]


def engine_info(**changes: object) -> EngineInfo:
    """What the fake engine says of itself; `changes` replace fields."""
    info = EngineInfo(
        model="fake",
        model_path="",
        served_model_names=("fake",),
        max_model_len=256,
        vocab_size=512,
        eos_token_ids=(2,),
        bos_token_id=1,
        max_logprobs=20,
        block_size=16,
        num_blocks=64,
        device="cpu",
        dtype="float32",
        kv_cache_dtype="float32",
        scheduling_policy="fcfs",
        max_num_seqs=16,
        max_num_batched_tokens=64,
        enable_prefix_caching=True,
    )
    return msgspec.structs.replace(info, **changes)


def count_up(request: AddRequest) -> list[list[int]]:
    """Child c answers 10 + c, 11 + c, ...: as many tokens as the context takes."""
    return [[10 + (child + i) % 400 for i in range(256)] for child in range(request.task.n)]


def vector_of(request: AddRequest) -> bytes:
    """What a prompt is embedded as: its length, its first token, and whether all of it was looked at."""
    assert isinstance(request.task, EmbedTask)
    prompt = request.inputs.prompt_token_ids
    return struct.pack("<3f", len(prompt), prompt[0], request.task.pooling == "mean")


class _Running:
    def __init__(self, client: bytes, request: AddRequest, tokens: list[list[int]]) -> None:
        self.client = client
        self.request = request
        self.tokens = tokens
        self.was_scheduled = False
        self.num_sent = [0] * request.task.n
        self.living = set(range(request.task.n))
        if request.resumed_children:
            self.living = {resumed.child for resumed in request.resumed_children}
        for resumed in request.resumed_children:
            self.num_sent[resumed.child] = len(resumed.output_token_ids)


class FakeCore:
    """See the module. Use it with `async with`; `received` lists every message but pings.

    Leaving the context is a core's death: its sockets close and nobody is told. The next one takes its `address`.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        info: EngineInfo | None = None,
        answer: Answer = count_up,
        answers_itself: bool = True,
        refuses: Callable[[AddRequest], PagewireError | None] = lambda request: None,
        num_cached_tokens: int = 0,
        num_draft_tokens: int = 0,
        num_accepted_tokens: int = 0,
        num_steps: int | None = None,
        protocol_version: int = PROTOCOL_VERSION,
        core_epoch: int = 1,
        engine_id: str = "",
        hello_error: ErrorInfo | None = None,
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="fake-core-")
        self.address = address or f"ipc://{Path(self._directory.name) / 'core.sock'}"
        self.info = info or engine_info()
        self.answer = answer
        self.answers_itself = answers_itself
        self.refuses = refuses
        self.num_cached_tokens = num_cached_tokens
        self.num_draft_tokens = num_draft_tokens  # of each request, as for the accepted ones
        self.num_accepted_tokens = num_accepted_tokens
        self.protocol_version = protocol_version
        self.core_epoch = core_epoch
        self.engine_id = engine_id
        self.hello_error = hello_error
        self.answers: dict[str, object] = {}  # of utilities, by method
        self.received: list[ClientMessage] = []
        self.num_pings = 0
        self.answers_pings = True
        self.is_stopped = False  # reads nothing of what is sent to it
        self.num_steps_left = num_steps  # None: no limit
        self._can_step = asyncio.Event()
        self.running: dict[tuple[bytes, int], _Running] = {}
        self.num_generation_tokens = 0
        self.num_finished_steps = 0
        self._arrival = asyncio.Condition()
        self._has_work = asyncio.Event()
        self.last_client = b""

    async def __aenter__(self) -> FakeCore:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(self.address)
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._run())]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        self._context.term()
        self._directory.cleanup()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def send(self, message: CoreMessage, *, client: bytes | None = None) -> None:
        """Send to a client; by default to the one that spoke last."""
        await self._socket.send_multipart([self.last_client if client is None else client, encode(message)])

    async def next(self, kind: type[M], *, count: int = 1) -> M:
        """Wait until `count` messages of a kind came; return the last of them."""

        def found() -> list[M]:
            return [message for message in self.received if isinstance(message, kind)]

        async with self._arrival:
            await asyncio.wait_for(self._arrival.wait_for(lambda: len(found()) >= count), 10)
        return found()[count - 1]

    async def next_ping(self, *, count: int = 1) -> None:
        """Wait until `count` more pings came."""
        goal = self.num_pings + count
        async with self._arrival:
            await asyncio.wait_for(self._arrival.wait_for(lambda: self.num_pings >= goal), 10)

    def allow_steps(self, num_steps: int | None) -> None:
        """Let the core take so many more steps; None: no limit any more."""
        self.num_steps_left = num_steps
        self._can_step.set()

    async def _receive(self) -> None:
        while True:
            client, frame = await self._socket.recv_multipart()
            if self.is_stopped:
                continue
            try:
                message = client_messages.decode(frame)
            except ProtocolError as exc:
                await self.send(Goodbye(error=exc.to_info()), client=client)
                continue
            self.last_client = client
            await self._take(client, message)
            async with self._arrival:
                if isinstance(message, Ping):
                    self.num_pings += 1
                else:
                    self.received.append(message)
                self._arrival.notify_all()

    async def _take(self, client: bytes, message: ClientMessage) -> None:
        match message:
            case Hello():
                if self.hello_error is not None:
                    await self.send(Goodbye(error=self.hello_error), client=client)
                else:
                    ready = Ready(
                        protocol_version=self.protocol_version,
                        core_epoch=self.core_epoch,
                        info=self.info,
                        engine_id=self.engine_id,
                    )
                    await self.send(ready, client=client)
            case Ping():
                if self.answers_pings:
                    await self.send(Ping(), client=client)
            case CallUtility() if self.answers_itself:
                await self.send(UtilityResult(call_id=message.call_id, result=self._call(message)), client=client)
            case AddRequest() if self.answers_itself:
                await self._add(client, message)
            case AbortRequests() if self.answers_itself:
                await self._abort(client, message)
            case _:
                pass

    def _call(self, call: CallUtility) -> object:
        match call.method:
            case "stats":
                return msgspec.structs.asdict(StepStats(num_steps=self.num_finished_steps))
            case "drain":
                return len(self.running)
        if call.method in self.answers:
            return self.answers[call.method]
        return [call.method, *call.args]

    async def _add(self, client: bytes, request: AddRequest) -> None:
        error = self.refuses(request)
        if error is None:
            error = _check(request, self.info)
        if error is not None:
            end = RequestEnd(request_id=request.request_id, error=error.to_info(), is_refused=True)
            await self.send(StepOutputs(ends=[end]), client=client)
            return
        await self.send(StepOutputs(accepted=[request.request_id]), client=client)
        if isinstance(request.task, EmbedTask):
            embedding = Embedding(request.request_id, vector_of(request), self.num_cached_tokens)
            ends = [RequestEnd(request_id=request.request_id)]
            await self.send(StepOutputs(embeddings=[embedding], ends=ends), client=client)
            return
        self.running[client, request.request_id] = _Running(client, request, self.answer(request))
        self._has_work.set()

    async def _abort(self, client: bytes, message: AbortRequests) -> None:
        for request_id in message.request_ids:
            run = self.running.pop((client, request_id), None)
            if run is not None:
                deltas = [
                    TokenDelta(request_id=request_id, child=child, finish_reason=FinishReason.ABORT)
                    for child in sorted(run.living)
                ]
                await self.send(StepOutputs(deltas=deltas, ends=[RequestEnd(request_id=request_id)]), client=client)
        for request_id, child in message.children:
            run = self.running.get((client, request_id))
            if run is not None:
                run.living.discard(child)
                if not run.living:
                    del self.running[client, request_id]
                    await self.send(StepOutputs(ends=[RequestEnd(request_id=request_id)]), client=client)

    async def _run(self) -> None:
        while True:
            await self._has_work.wait()
            if self.num_steps_left is not None:
                while self.num_steps_left == 0:
                    self._can_step.clear()
                    await self._can_step.wait()
            if self.num_steps_left is not None:
                self.num_steps_left -= 1
            outputs: dict[bytes, StepOutputs] = {}
            for key, run in list(self.running.items()):
                step = outputs.setdefault(run.client, StepOutputs())
                self._step(run, step)
                if not run.living:
                    del self.running[key]
                    end = RequestEnd(
                        request_id=run.request.request_id,
                        num_draft_tokens=self.num_draft_tokens,
                        num_accepted_tokens=self.num_accepted_tokens,
                    )
                    step.ends.append(end)
            self.num_finished_steps += 1
            stats = StepStats(
                num_running=len(self.running),
                num_steps=self.num_finished_steps,
                num_generation_tokens=self.num_generation_tokens,
            )
            for client, step in outputs.items():
                await self.send(msgspec.structs.replace(step, stats=stats), client=client)
            if not self.running:
                self._has_work.clear()
            await asyncio.sleep(0)

    def _step(self, run: _Running, step: StepOutputs) -> None:
        task, request_id = run.request.task, run.request.request_id
        prompt = run.request.inputs.prompt_token_ids
        if not run.was_scheduled:
            run.was_scheduled = True
            step.scheduled.append(request_id)
        if not any(run.num_sent):
            num_prompt = task.sampling.num_prompt_logprobs
            entries = [] if num_prompt is None else [logprob_of(token, num_prompt) for token in prompt[1:]]
            step.starts.append(
                RequestStart(
                    request_id=request_id,
                    num_cached_tokens=self.num_cached_tokens,
                    queue_s=0.001,
                    prompt_logprobs=entries,
                )
            )
        room = self.info.max_model_len - len(prompt)
        limit = room if task.max_tokens is None else min(task.max_tokens, room)
        for child in sorted(run.living):
            index = run.num_sent[child]
            token = run.tokens[child][index]
            run.num_sent[child] += 1
            self.num_generation_tokens += 1
            reason, stop_reason = None, None
            if token in task.eos_token_ids:
                reason = FinishReason.STOP
            elif token in task.stop_token_ids:
                reason, stop_reason = FinishReason.STOP, token
            elif index + 1 >= min(limit, len(run.tokens[child])):
                reason = FinishReason.LENGTH
            if reason is not None:
                run.living.discard(child)
            count = task.sampling.num_logprobs
            step.deltas.append(
                TokenDelta(
                    request_id=request_id,
                    child=child,
                    first_index=index,
                    token_ids=[token],
                    logprobs=[] if count is None else [logprob_of(token, count)],
                    finish_reason=reason,
                    stop_reason=stop_reason,
                )
            )


async def until(holds: Callable[[], bool]) -> None:
    """Give the loop turns until the condition holds; fails after 10 s."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - there is no event for what code under test does inside
            await asyncio.sleep(0)


def logprob_of(token: int, count: int) -> TokenLogprobs:
    """The logprob that the fake gives a token: it is the most likely one, at -token / 1000."""
    top = [token + i for i in range(max(count, 0))]
    return TokenLogprobs(token, -token / 1000, 1, top, [-(token + 500 * i) / 1000 for i in range(len(top))])


def _check(request: AddRequest, info: EngineInfo) -> PagewireError | None:
    limits = RequestLimits(
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        max_logprobs=info.max_logprobs,
        has_priorities=info.scheduling_policy == "priority",
        max_num_seqs=info.max_num_seqs,
    )
    try:
        validate_request(request, limits)
    except PagewireError as exc:
        return exc
    return None
