"""What a server says of itself while a load runs: requests in its batch and KV memory, read from its /metrics.

The names are those of vLLM (which pagewire has too), llama.cpp and, for what only it has, pagewire. A server that has
no /metrics, or none of the names, says nothing, and the benchmark shows nothing for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

import aiohttp

# A scrape costs the server a few milliseconds, which it lacks for tokens: rare enough to take well below 1 % of a core.
INTERVAL_S = 0.5

_RUNNING = ("vllm:num_requests_running", "llamacpp:requests_processing")
_KV_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "llamacpp:kv_cache_usage_ratio")
_FILLED = ("pagewire:kv_slots_filled_perc",)


@dataclass
class ServerState:
    """What was read from a server; None for what it does not say.

    Attributes:
        peak_running: most requests in its batch at once.
        peak_kv_use: the largest share of its KV memory in use, from 0 to 1.
        filled_shares: of each reading with KV memory in use: the share of the slots in use that hold a token.
    """

    peak_running: float | None = None
    peak_kv_use: float | None = None
    filled_shares: list[float] = field(default_factory=list)

    @property
    def mean_filled(self) -> float | None:
        """The mean share of the KV slots in use that hold a token, from 0 to 1."""
        return sum(self.filled_shares) / len(self.filled_shares) if self.filled_shares else None

    def take(self, text: str) -> None:
        """Take the text of one scrape."""
        samples = read_samples(text, (*_RUNNING, *_KV_USE, *_FILLED))
        # Several series of one name are several engines behind one server.
        running, use = _first(samples, _RUNNING), _first(samples, _KV_USE)
        if running:
            self.peak_running = max(self.peak_running or 0.0, sum(running))
        if use:
            self.peak_kv_use = max(self.peak_kv_use or 0.0, *use)
        if (filled := _first(samples, _FILLED)) and max(filled) > 0:
            self.filled_shares.append(max(filled))


@contextlib.asynccontextmanager
async def watching_server(
    session: aiohttp.ClientSession, server_url: str, state: ServerState, *, interval_s: float = INTERVAL_S
) -> AsyncIterator[None]:
    """Read a server's /metrics into `state` again and again while the block runs."""

    async def scrape() -> bool:
        try:
            async with session.get(f"{server_url}/metrics") as response:
                if response.status != 200:
                    return False
                state.take(await response.text(errors="replace"))
        except (aiohttp.ClientError, OSError):
            return False  # the requests of the load say more of a server that is gone
        return True

    async def watch() -> None:
        if not await scrape():
            return  # a server that tells nothing
        while True:  # one that is too busy for once is asked again
            await asyncio.sleep(interval_s)
            await scrape()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def read_samples(text: str, names: Iterable[str]) -> dict[str, list[float]]:
    """Return the values of some metrics in Prometheus' text format, one a series."""
    wanted = tuple(names)
    samples: dict[str, list[float]] = {}
    for line in text.splitlines():
        if not line.startswith(wanted):
            continue
        # name{labels} value [timestamp]; label values may hold spaces and braces
        name, brace, rest = line.partition("{")
        value = rest.rpartition("}")[2] if brace else line.partition(" ")[2]
        name = name if brace else line.partition(" ")[0]
        if name in wanted and value.split():
            with contextlib.suppress(ValueError):
                samples.setdefault(name, []).append(float(value.split()[0]))
    return samples


def _first(samples: dict[str, list[float]], names: Iterable[str]) -> list[float]:
    return next((samples[name] for name in names if name in samples), [])
