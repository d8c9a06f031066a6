"""Requests by a client that speaks the wire protocol itself, so that it sees every message about each of them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import zmq
import zmq.asyncio

from pagewire.ipc.codec import PROTOCOL_VERSION, core_messages, encode
from pagewire.ipc.outputs import EngineInfo, Goodbye, Ready, RequestEnd, StepOutputs, TokenDelta
from pagewire.ipc.requests import AbortRequests, AddRequest, GenerateTask, Hello, Message, Ping, TokenInputs
from pagewire.ipc.sampling_params import Sampling

_NUM_LIVE = 8
_POLL_MS = 100
_SILENT_FOR_S = 60.0


@dataclass
class _Watched:
    """A request and what was said of it."""

    request: AddRequest
    must_be_refused: bool
    abort_after: int | None  # tokens of child 0
    num_accepted: int = 0
    is_aborted: bool = False
    num_tokens: Counter[int] = field(default_factory=Counter)  # by child
    finished: Counter[int] = field(default_factory=Counter)  # by child


class WireLoad:
    """A client with a few requests at once.

    Attributes:
        info: what the core said of itself.
        num_accepted: requests that the core has accepted.
        num_ends: terminal messages of requests that it had accepted, and of those that it refused.
        problems: what should not have happened.
    """

    def __init__(self, socket: zmq.asyncio.Socket, info: EngineInfo, rng: random.Random) -> None:
        self.info = info
        self.num_accepted = 0
        self.num_ends = 0
        self.num_refused = 0
        self.problems: list[str] = []
        self._socket = socket
        self._rng = rng
        self._live: dict[int, _Watched] = {}
        self._ended: set[int] = set()
        self._last_id = 0

    @classmethod
    async def connect(cls, address: str, rng: random.Random) -> WireLoad:
        """Attach to the core.

        Raises:
            RuntimeError: it refuses.
        """
        socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
        await socket.send(encode(Hello(protocol_version=PROTOCOL_VERSION, client_name="soak")))
        answer = core_messages.decode(await socket.recv())
        if not isinstance(answer, Ready):
            raise RuntimeError(f"the core answered {answer}")
        return cls(socket, answer.info, rng)

    def close(self) -> None:
        """Leave the core."""
        self._socket.close()

    async def run(self, number: int) -> None:
        """Send so many requests and read all that the core says of them.

        Raises:
            RuntimeError: the core said goodbye, or nothing for a minute.
        """
        last_id = self._last_id + number
        silent_s = 0.0
        while self._live or self._last_id < last_id:
            while len(self._live) < _NUM_LIVE and self._last_id < last_id:
                await self._add()
            if not await self._socket.poll(_POLL_MS):
                silent_s += _POLL_MS / 1000
                if silent_s > _SILENT_FOR_S:
                    raise RuntimeError(f"the core says nothing of requests {sorted(self._live)}")
                await self._send(Ping())
                continue
            match core_messages.decode(await self._socket.recv()):
                case StepOutputs() as outputs:
                    silent_s = 0.0
                    await self._take(outputs)
                case Goodbye(error=error):
                    raise RuntimeError(f"the core said goodbye: {error.message}")
                case _:
                    continue

    async def _send(self, message: Message) -> None:
        await self._socket.send(encode(message))

    async def _add(self) -> None:
        rng = self._rng
        self._last_id += 1
        is_bad = rng.random() < 0.1
        prompt = [rng.randrange(5, 250) for _ in range(rng.randint(1, 40))]
        if is_bad:
            prompt = rng.choice(([], [self.info.vocab_size], [5] * (self.info.max_model_len + 1)))
        abort_after = rng.choice((None, None, 0, 1, 5))
        request = AddRequest(
            request_id=self._last_id,
            inputs=TokenInputs(prompt_token_ids=prompt),
            task=GenerateTask(
                sampling=Sampling(temperature=float(rng.choice((0, 1))), seed=rng.getrandbits(32)),
                n=rng.choice((1, 1, 2, 3)),
                max_tokens=rng.randint(1, 12) if abort_after is None else 200,
            ),
        )
        self._live[self._last_id] = _Watched(request, is_bad, abort_after)
        await self._send(request)
        if abort_after == 0:
            await self._abort(self._live[self._last_id])

    async def _abort(self, watched: _Watched) -> None:
        watched.is_aborted = True
        await self._send(AbortRequests(request_ids=[watched.request.request_id]))

    async def _take(self, outputs: StepOutputs) -> None:
        for request_id in outputs.accepted:
            if (watched := self._find(request_id, "accepted")) is not None:
                watched.num_accepted += 1
                self.num_accepted += 1
        for start in outputs.starts:
            self._find(start.request_id, "started")
        for delta in outputs.deltas:
            if (watched := self._find(delta.request_id, "given tokens")) is not None:
                await self._take_delta(watched, delta)
        for end in outputs.ends:
            if (watched := self._find(end.request_id, "ended")) is not None:
                self._take_end(watched, end)

    def _find(self, request_id: int, what: str) -> _Watched | None:
        watched = self._live.get(request_id)
        if watched is None:
            state = "after its end" if request_id in self._ended else "that was never asked"
            self.problems.append(f"request {request_id} {state} was {what}")
        return watched

    async def _take_delta(self, watched: _Watched, delta: TokenDelta) -> None:
        child = delta.child
        if delta.first_index != watched.num_tokens[child] or watched.finished[child]:
            self.problems.append(f"a delta out of order: {delta} after {watched.num_tokens[child]} tokens")
        watched.num_tokens[child] += len(delta.token_ids)
        watched.finished[child] += delta.finish_reason is not None
        is_due = watched.abort_after is not None and watched.num_tokens[0] >= watched.abort_after
        if is_due and not watched.is_aborted:
            await self._abort(watched)

    def _take_end(self, watched: _Watched, end: RequestEnd) -> None:
        del self._live[end.request_id]
        self._ended.add(end.request_id)
        self.num_ends += 1
        self.num_refused += end.is_refused
        if end.is_refused != watched.must_be_refused or watched.num_accepted != (not end.is_refused):
            self.problems.append(f"{end} of a request that was accepted {watched.num_accepted} times")
        if end.error is not None and not end.is_refused:
            self.problems.append(f"request {end.request_id} failed: {end.error.message}")
        is_whole = all(watched.finished[child] == 1 for child in range(watched.request.n))
        if not (is_whole or watched.is_aborted or end.is_refused):
            self.problems.append(f"request {end.request_id} ended with children {dict(watched.finished)} finished")
