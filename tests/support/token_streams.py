"""Streams of /v1/completions that a test reads while it disturbs the server, and compares bit for bit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

SILENCE_LIMIT_S = 60.0  # a loaded machine; a stream that is lost should say so much earlier


@dataclass(eq=False)
class TokenStream:
    """One stream and what it has brought so far.

    Attributes:
        is_accepted: the response's head has come.
        token_ids, logprobs, finish_reasons: by choice.
        error: the event that ended it instead.
        is_done: [DONE] has come.
    """

    body: dict[str, Any]
    is_accepted: bool = False
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    is_done: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices so far."""
        return sum(map(len, self.token_ids.values()))

    @property
    def answer(self) -> object:
        """All that must be the same however the server fared."""
        return self.token_ids, self.logprobs, self.finish_reasons

    async def read(self, url: str) -> TokenStream:
        """Read to the end, which must be [DONE]; return itself."""
        body = {"ignore_eos": True, "stream": True, "return_token_ids": True, **self.body}
        async with (
            asyncio.timeout(SILENCE_LIMIT_S),
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
            session.post(f"{url}/v1/completions", json=body) as response,
        ):
            assert response.status == 200, await response.text()
            self.is_accepted = True
            async for line in response.content:
                assert not self.is_done, f"{line!r} after [DONE]"
                if line.startswith(b"data: "):
                    self._take(line.removeprefix(b"data: ").strip())
                    assert not self.is_done or await response.content.read() in (b"", b"\n")
        assert self.is_done
        return self

    def _take(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        event = json.loads(data)
        if "error" in event:
            self.error = event["error"]
            return
        for choice in event["choices"]:
            index = choice["index"]
            self.token_ids.setdefault(index, []).extend(choice.get("token_ids") or [])
            self.logprobs.setdefault(index, []).extend((choice.get("logprobs") or {}).get("token_logprobs", []))
            if choice["finish_reason"] is not None:
                assert index not in self.finish_reasons
                self.finish_reasons[index] = choice["finish_reason"]


async def read_alone(url: str, bodies: list[dict[str, Any]]) -> list[object]:
    """Return the answer of each request when nothing else runs and nothing happens."""
    return [(await TokenStream(body).read(url)).answer for body in bodies]


async def read_disturbed(
    url: str,
    bodies: list[dict[str, Any]],
    *,
    when: Callable[[list[TokenStream]], bool],
    disturb: Callable[[], Awaitable[None]],
) -> list[TokenStream]:
    """Read all streams at once, do something when the moment has come, and return them at their ends."""
    streams = [TokenStream(body) for body in bodies]
    reading = [asyncio.create_task(stream.read(url)) for stream in streams]
    await eventually(lambda: when(streams) or any(task.done() for task in reading), 60, "the moment to disturb")
    assert not all(stream.is_done for stream in streams), "the streams are too short to be disturbed"
    await disturb()
    await asyncio.gather(*reading)
    return streams


async def eventually(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll a condition of other processes or tasks, which send no event of it.

    Raises:
        AssertionError: it does not hold within `timeout_s`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while not holds():  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what} did not happen within {timeout_s} s") from None
