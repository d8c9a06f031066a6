"""How many tokens a text has, asked of the server itself, since only it knows the model's tokenizer.

`POST /tokenize` is what pagewire, vLLM and llama.cpp have; the latter names the text differently. Any other server
gets an estimate, and the benchmark says so. Only the choice of prompts hangs on these counts: the figures of a run are
what the server reports as usage.
"""

from __future__ import annotations

import re

import aiohttp
import msgspec

# What BPE vocabularies mostly make one token: a short run of letters, a digit, a sign.
_PIECE = re.compile(r"[A-Za-z]{1,8}|[0-9]|[^\sA-Za-z0-9]")


class _Tokenized(msgspec.Struct):
    tokens: list[int]


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a text has, without a tokenizer."""
    return sum(1 for _ in _PIECE.finditer(text))


class TokenCounter:
    """Counts by the server where it can, else by estimate; made by `connect`."""

    def __init__(self, session: aiohttp.ClientSession, url: str, body: dict[str, object] | None, field: str) -> None:
        """Use `connect` instead, which finds out what the server takes."""
        self._session = session
        self._url = url
        self._body = body
        self._field = field

    @classmethod
    async def connect(cls, session: aiohttp.ClientSession, server_url: str, model: str) -> TokenCounter:
        """Return a counter for a server's model, after finding out how the server counts.

        Raises:
            aiohttp.ClientError: the server can't be reached.
        """
        forms: tuple[tuple[dict[str, object], str], ...] = (
            ({"model": model, "add_special_tokens": False}, "prompt"),  # pagewire, vLLM
            ({}, "content"),  # llama.cpp
        )
        url = f"{server_url}/tokenize"
        for body, field in forms:
            counter = cls(session, url, body, field)
            if await counter._ask("one two three"):
                return counter
        return cls(session, url, None, "")

    @property
    def is_exact(self) -> bool:
        """Whether the server counts."""
        return self._body is not None

    async def count(self, text: str) -> int:
        """Return the number of a text's tokens, without a begin-of-text token.

        Raises:
            aiohttp.ClientError: the server can't be reached any more.
        """
        # A server refuses to count a text far beyond its context; that it is too long the estimate says as well.
        return await self._ask(text) or estimated_tokens(text)

    async def _ask(self, text: str) -> int:
        """Return the server's count, or 0 where it gives none."""
        if self._body is None:
            return 0
        async with self._session.post(self._url, json={**self._body, self._field: text}) as response:
            content = await response.read()
        if response.status != 200:
            return 0
        try:
            return len(msgspec.json.decode(content, type=_Tokenized).tokens)
        except msgspec.DecodeError:
            return 0
