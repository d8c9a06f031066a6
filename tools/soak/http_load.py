"""Requests over HTTP: read to their end, broken off at every point, or malformed; each must end as it should."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any, NamedTuple

import aiohttp

# How a request goes on, and how many of a hundred do so.
_KINDS = {"whole": 25, "stream": 35, "broken off": 15, "vanished": 10, "malformed": 15}
_MAX_TOKENS = 12
_VANISH_WITHIN_S = 0.01


class Malformed(NamedTuple):
    """A body that must be refused with this status."""

    body: bytes
    status: int = 400


def malformed_bodies(vocab_size: int, max_model_len: int) -> list[Malformed]:
    """Return bodies of /v1/completions that no server may take."""

    def fields(**values: Any) -> Malformed:  # Any: whatever JSON can say
        return Malformed(json.dumps({"prompt": [5, 6], "max_tokens": 4, **values}).encode())

    return [
        Malformed(b"{"),
        Malformed(b""),
        Malformed(b'{"prompt": "\xff"}'),
        Malformed(b"[" * 5000),
        Malformed(b'{"prompt": "a", "temperature": NaN}'),
        Malformed(b'{"prompt": "a", "seed": ' + b"9" * 400 + b"}"),
        fields(prompt=None),
        fields(prompt=[]),
        fields(prompt=[vocab_size]),
        fields(prompt=[-1]),
        fields(prompt=[5] * (max_model_len + 1)),
        fields(prompt=["a", 5]),
        fields(max_tokens=-1),
        fields(max_tokens="four"),
        fields(temperature=-1),
        fields(temperature=1e300),
        fields(top_p=0),
        fields(n=0),
        fields(n=10**9),
        fields(stop=[""]),
        fields(logit_bias={str(vocab_size): 1}),
        fields(no_such_field=1),
    ]


class HTTPLoad:
    """Clients of /v1/completions.

    Attributes:
        counts: requests by kind.
        num_accepted: answers (n a request) that the server has begun, by its status 200.
        num_unknown: answers of requests that were broken off before a status came; the server may have begun them.
        problems: what should not have happened.
    """

    def __init__(self, url: str, malformed: list[Malformed], rng: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self.num_accepted = 0
        self.num_unknown = 0
        self.problems: list[str] = []
        self._url = f"{url}/v1/completions"
        self._malformed = malformed
        self._rng = rng

    async def run(self, number: int, num_clients: int) -> None:
        """Send so many requests, so many at once."""
        remaining = iter(range(number))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:

            async def client() -> None:
                for _ in remaining:
                    await self._one(session)

            async with asyncio.TaskGroup() as group:
                for _ in range(num_clients):
                    group.create_task(client())

    async def _one(self, session: aiohttp.ClientSession) -> None:
        (kind,) = self._rng.choices(list(_KINDS), list(_KINDS.values()))
        self.counts[kind] += 1
        try:
            match kind:
                case "malformed":
                    await self._send_malformed(session)
                case "vanished":
                    await self._vanish(session)
                case "whole":
                    await self._read_whole(session)
                case _:
                    await self._read_stream(session, is_broken_off=kind == "broken off")
        except (aiohttp.ClientError, TimeoutError) as exc:
            self.problems.append(f"{kind}: {exc!r}")

    def _body(self, **fields: Any) -> dict[str, Any]:  # Any: what JSON can say
        rng = self._rng
        n = rng.choice((1, 1, 1, 2))
        return {
            "prompt": [rng.randrange(5, 250) for _ in range(rng.randint(1, 40))],
            "max_tokens": rng.randint(1, _MAX_TOKENS),
            "temperature": rng.choice((0, 1)) if n == 1 else 1,
            "seed": rng.getrandbits(32),
            "n": n,
            "ignore_eos": rng.random() < 0.5,
            **fields,
        }

    async def _send_malformed(self, session: aiohttp.ClientSession) -> None:
        case = self._rng.choice(self._malformed)
        async with session.post(self._url, data=case.body, headers={"Content-Type": "application/json"}) as response:
            text = await response.text()
            is_refused = response.status == case.status and "message" in json.loads(text).get("error", {})
            if not is_refused:
                self.problems.append(f"{case.body[:80]!r} was answered by {response.status}: {text[:200]}")

    async def _vanish(self, session: aiohttp.ClientSession) -> None:
        body = self._body(stream=self._rng.random() < 0.5, max_tokens=200, ignore_eos=True)
        self.num_unknown += body["n"]
        try:
            async with asyncio.timeout(self._rng.uniform(0, _VANISH_WITHIN_S)), session.post(self._url, json=body):
                pass
        except TimeoutError:
            pass  # the connection is closed with whatever was under way

    async def _read_whole(self, session: aiohttp.ClientSession) -> None:
        body = self._body()
        async with session.post(self._url, json=body) as response:
            answer = await response.json()
            if response.status != 200:
                self.problems.append(f"{response.status}: {answer}")
                return
            self.num_accepted += body["n"]
            self._check_reasons([choice["finish_reason"] for choice in answer["choices"]], body["n"])

    async def _read_stream(self, session: aiohttp.ClientSession, *, is_broken_off: bool) -> None:
        body = self._body(stream=True, **({"max_tokens": 200, "ignore_eos": True} if is_broken_off else {}))
        async with session.post(self._url, json=body) as response:
            if response.status != 200:
                self.problems.append(f"{response.status}: {await response.text()}")
                return
            self.num_accepted += body["n"]
            if is_broken_off:
                for _ in range(self._rng.randint(0, 5)):
                    await response.content.readline()
                response.close()
                return
            events = [line for line in (await response.read()).split(b"\n\n") if line.startswith(b"data: ")]
        *chunks, last = [event.removeprefix(b"data: ") for event in events]
        if last != b"[DONE]" or b"[DONE]" in chunks:
            self.problems.append(f"a stream ended by {last[:200]!r}")
            return
        parsed = [json.loads(chunk) for chunk in chunks]
        choices = [choice for chunk in parsed for choice in chunk.get("choices", [])]
        self._check_reasons([choice["finish_reason"] for choice in choices if choice["finish_reason"]], body["n"])

    def _check_reasons(self, reasons: list[str | None], n: int) -> None:
        if len(reasons) != n or not all(reason in ("stop", "length") for reason in reasons):
            self.problems.append(f"finish reasons {reasons} of {n} choices")
