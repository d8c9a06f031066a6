"""The streaming clients: what they ask, how an answer is read, and how a disturbed one is judged."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp

from tools.prompts import PROMPTS

# After a restart all that runs is computed again: longer requests would leave the streams of sixteen clients no time
# between two strikes that are seconds apart.
_NUM_LONG_PROMPT_WORDS = 200
_MIN_TOKENS, _MAX_TOKENS = 40, 120
_WORDS = (
    "river mountain village winter lamp engine stone garden letter window market harbour teacher paper music bridge "
    "summer castle forest island captain silver morning shadow copper orchard thunder meadow lantern compass"
)
# A strike's gap begins with the last token that was under way: at most so many seconds behind it.
_IN_FLIGHT_S = 1.0


class StreamRequest(NamedTuple):
    """A request that is asked again and again.

    Attributes:
        body: of /v1/completions.
        is_long: its prompt is long enough that a strike can hit its prefill.
    """

    body: dict[str, Any]
    is_long: bool


class Answer(NamedTuple):
    """What a client must see whatever happens to the server."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str


class StreamLost(Exception):
    """A stream did not bring its answer: refused, broken, ended by an error, or silent."""


def make_requests(number: int, seed: int) -> list[StreamRequest]:
    """Return distinct requests: half greedy, half seeded at temperature 1; every fifth has a long prompt.

    Args:
        number: how many.
        seed: the same seed makes the same requests.
    """
    rng = random.Random(seed)
    requests = []
    for index in range(number):
        is_long = index % 5 == 0
        prompt = " ".join(rng.choices(_WORDS.split(), k=_NUM_LONG_PROMPT_WORDS)) if is_long else rng.choice(PROMPTS)
        body = {
            "prompt": prompt,
            "max_tokens": rng.randint(_MIN_TOKENS, _MAX_TOKENS),
            "temperature": float(index // 5 % 2 if is_long else index % 2),
            "seed": rng.getrandbits(32),
            "ignore_eos": rng.random() < 0.7,
            "stream": True,
            "return_token_ids": True,
        }
        requests.append(StreamRequest(body, is_long))
    return requests


@dataclass(eq=False)
class Stream:
    """One answer that is under way.

    Attributes:
        started_s: when it was asked.
        silence: ends it when it is silent for too long.
        token_times_s: when each event with tokens came.
    """

    request: StreamRequest
    started_s: float
    silence: asyncio.Timeout
    token_times_s: list[float] = field(default_factory=list)

    def pauses_s(self, strike_times_s: Sequence[float]) -> list[float]:
        """Return, for each strike that came between two tokens, the gap that it made.

        Tokens that were under way may still arrive after a strike, so the longest of the gaps that begin before it or
        shortly after it is taken.
        """
        times = self.token_times_s
        pauses = []
        for strike_s in strike_times_s:
            if times and times[0] <= strike_s < times[-1]:
                gaps = [
                    after - before
                    for before, after in itertools.pairwise(times)
                    if after > strike_s and before < strike_s + _IN_FLIGHT_S
                ]
                pauses.append(max(gaps))
        return pauses


class Clients:
    """So many clients that each ask one request after the other, and compare what they get with what it should be.

    Attributes:
        live: the streams under way.
        expected: each request's answer when nothing is disturbed, by its index.
        num_answers: complete streams so far, and how many there were of each temperature.
        lost: why streams were lost.
        differing: what was wrong with answers.
        pauses_s: see `Stream.pauses_s`.
        prefill_began: set whenever a request with a long prompt is sent.
    """

    def __init__(self, url: str, requests: Sequence[StreamRequest], *, silence_limit_s: float) -> None:
        """Ask the server at `url`; a stream is lost that has no token for so long, and nothing was struck either."""
        self.live: set[Stream] = set()
        self.expected: dict[int, Answer] = {}
        self.num_answers = {0.0: 0, 1.0: 0}
        self.lost: list[str] = []
        self.differing: list[str] = []
        self.pauses_s: list[float] = []
        self.prefill_began = asyncio.Event()
        self._strike_times_s: list[float] = []
        self._url = url
        self._requests = requests
        self._silence_limit_s = silence_limit_s
        self._is_closing = False
        self._num_asked = 0

    @property
    def num_prefilling(self) -> int:
        """Streams that have no token yet."""
        return sum(not stream.token_times_s for stream in self.live)

    async def record(self, num_clients: int) -> str | None:
        """Ask every request once, undisturbed, and keep the answers as those to expect; return a problem or None."""
        places = asyncio.Semaphore(num_clients)

        async def ask(session: aiohttp.ClientSession, index: int) -> None:
            async with places:
                self.expected[index] = await self._ask(session, self._requests[index])

        async with _session() as session:
            asking = [ask(session, index) for index in range(len(self._requests))]
            results = await asyncio.gather(*asking, return_exceptions=True)
        return next((str(result) for result in results if result is not None), None)

    async def run(self, num_clients: int) -> None:
        """Ask until `close`; return when the last stream has ended."""
        async with _session() as session, asyncio.TaskGroup() as group:
            for _ in range(num_clients):
                group.create_task(self._run_one(session))

    def note_strike(self, time_s: float) -> None:
        """Remember a strike for the pauses that it makes; each stream may be silent for a while again."""
        self._strike_times_s.append(time_s)
        for stream in self.live:
            self._allow_silence(stream)

    def close(self) -> None:
        """Ask nothing more; the streams under way go on to their ends."""
        self._is_closing = True

    async def _run_one(self, session: aiohttp.ClientSession) -> None:
        while not self._is_closing:
            number = self._num_asked
            self._num_asked += 1
            index = number % len(self._requests)
            request = self._requests[index]
            # No two share a prefix cache: every long prompt is computed again.
            body = {**request.body, "cache_salt": f"chaos {number}"}
            try:
                answer = await self._ask(session, StreamRequest(body, request.is_long))
            except StreamLost as exc:
                self.lost.append(f"stream {number} (request {index}): {exc}")
                continue
            self.num_answers[body["temperature"]] += 1
            if answer != self.expected[index]:
                self.differing.append(f"stream {number} (request {index}): {_difference(answer, self.expected[index])}")

    async def _ask(self, session: aiohttp.ClientSession, request: StreamRequest) -> Answer:
        stream = Stream(request, time.monotonic(), asyncio.timeout(self._silence_limit_s))
        self.live.add(stream)
        if request.is_long:
            self.prefill_began.set()
        try:
            async with stream.silence:
                return await self._read(session, stream)
        except TimeoutError:
            raise StreamLost(f"no token for {self._silence_limit_s} s after {len(stream.token_times_s)}") from None
        except (aiohttp.ClientError, ConnectionError) as exc:
            raise StreamLost(f"broken after {len(stream.token_times_s)} tokens: {exc!r}") from exc
        finally:
            self.live.discard(stream)
            first = bisect_left(self._strike_times_s, stream.started_s)
            self.pauses_s += stream.pauses_s(self._strike_times_s[first:])

    def _allow_silence(self, stream: Stream) -> None:
        if not stream.silence.expired():
            stream.silence.reschedule(asyncio.get_running_loop().time() + self._silence_limit_s)

    async def _read(self, session: aiohttp.ClientSession, stream: Stream) -> Answer:
        token_ids: list[int] = []
        texts: list[str] = []
        finish_reason = None
        async with session.post(f"{self._url}/v1/completions", json=stream.request.body) as response:
            if response.status != 200:
                raise StreamLost(f"HTTP {response.status}: {(await response.text())[:300]}")
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue  # an event's end, or a comment that keeps the connection alive
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    if finish_reason is None:
                        raise StreamLost(f"[DONE] without a finish reason after {len(token_ids)} tokens")
                    return Answer(tuple(token_ids), "".join(texts), finish_reason)
                event = json.loads(data)
                if "error" in event:
                    raise StreamLost(f"an error after {len(token_ids)} tokens: {event['error']}")
                (choice,) = event["choices"]
                texts.append(choice["text"])
                finish_reason = choice["finish_reason"] or finish_reason
                if choice.get("token_ids"):
                    token_ids += choice["token_ids"]
                    stream.token_times_s.append(time.monotonic())
                    self._allow_silence(stream)
        raise StreamLost(f"the stream ended without [DONE] after {len(token_ids)} tokens")


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=aiohttp.ClientTimeout(total=None)
    )


def _difference(answer: Answer, expected: Answer) -> str:
    for position, (got, wanted) in enumerate(zip(answer.token_ids, expected.token_ids, strict=False)):
        if got != wanted:
            return f"token {position} is {got}, not {wanted}"
    if len(answer.token_ids) != len(expected.token_ids):
        return f"{len(answer.token_ids)} tokens, not {len(expected.token_ids)}"
    if answer.finish_reason != expected.finish_reason:
        return f"finish reason {answer.finish_reason}, not {expected.finish_reason}"
    return f"the same tokens, but the text {answer.text!r}, not {expected.text!r}"
