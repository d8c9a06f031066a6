"""Sends the requests of a file, so many at once, and writes each answer when it is there."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import BinaryIO

import aiohttp
from tqdm import tqdm

from pagewire.ipc.config import EngineConfig

from ...bench.serving.client import describe_failure
from ..connection import ServerConnection
from ..open_connection import open_connection
from .config import BatchConfig
from .files import Numbered, answered_before, count_requests, drop_answers, open_output, requests_as_they_come
from .lines import BadLine, BatchRequest, answer_line, error_line

Sleep = Callable[[float], Awaitable[object]]

_FAILED = 1
_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_TRIES = 4  # with the pauses between them, some seconds: a server that restarts, or is full for a moment
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_BUSY = (429, 503)


def run(config: BatchConfig, engine_config: EngineConfig) -> int:
    """Answer a file of requests; return the exit code, 1 if any of them has no good answer.

    Args:
        config: of the batch.
        engine_config: of the engine to start, where no server is named.

    Raises:
        StartError: a file can't be used, or there is no server.
    """
    answered = answered_before(config)
    total = count_requests(config.input_file)
    with (
        open_output(config) as output,
        open_connection(config.url, config.api_key, engine_config, _say) as connection,
        tqdm(total=total, desc="Requests", unit="req", disable=config.disable_tqdm or not sys.stderr.isatty()) as bar,
    ):
        if config.url is not None:
            connection.check()
        if config.overwrite:
            drop_answers(output)
        batch = Batch(connection, output, answered, lambda: bar.update())
        try:
            connection.run(batch.run(config.input_file, config.max_concurrency))
        except KeyboardInterrupt:
            _say(f"Interrupted: {batch.summary()} --resume goes on.")
            return _INTERRUPTED
    _say(batch.summary())
    return _FAILED if batch.counts["failed"] else 0


class Batch:
    """One file's requests under way.

    Attributes:
        counts: of requests "answered", "failed", and "kept": answered by an earlier run.

    Args:
        connection: to the server.
        output: takes the lines of answers.
        answered: whose answers are there already.
        on_end: called for each request that ends.
        sleep: waits some seconds.
    """

    def __init__(
        self,
        connection: ServerConnection,
        output: BinaryIO,
        answered: frozenset[str],
        on_end: Callable[[], object],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._connection = connection
        self._output = output
        self._answered = answered
        self._on_end = on_end
        self._sleep = sleep

    async def run(self, path: str, max_concurrency: int) -> None:
        """Send all requests of a file; lines that are none are answered with what is wrong."""
        requests, turn = requests_as_they_come(path), asyncio.Lock()
        workers = [asyncio.create_task(self._work(requests, turn)) for _ in range(max_concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()

    def summary(self) -> str:
        """Return one line."""
        counts = self.counts
        kept = f", {counts['kept']} were answered before" if counts["kept"] else ""
        failed = f", {counts['failed']} failed (their lines say why)" if counts["failed"] else ""
        return f"{counts['answered']} answered{failed}{kept}."

    async def _work(self, requests: AsyncIterator[Numbered], turn: asyncio.Lock) -> None:
        """Take the next request from the file until there is none."""
        while True:
            async with turn:
                following = await anext(requests, None)
            if following is None:
                return
            number, request = following
            if isinstance(request, BadLine):
                line = error_line(request.custom_id, "invalid_request_line", f"line {number}: {request}")
                self._end("failed", line)
            elif request.custom_id in self._answered:
                self._end("kept", b"")
            else:
                self._end(*await self._send(request))

    async def _send(self, request: BatchRequest) -> tuple[str, bytes]:
        """Return how a request ended, and its line."""
        pause_s = _FIRST_PAUSE_S
        for is_last in [*[False] * (_TRIES - 1), True]:
            try:
                status, headers, body = await self._connection.post(request.url, request.body)
            except (aiohttp.ClientError, OSError) as exc:
                if is_last:
                    text = describe_failure(exc) if isinstance(exc, aiohttp.ClientError) else str(exc)
                    return "failed", error_line(request.custom_id, "connection_error", text or type(exc).__name__)
            else:
                if is_last or status not in _BUSY:
                    line = answer_line(request, status, headers.get("X-Request-Id"), body)
                    return "answered" if status < 400 else "failed", line
                pause_s = _asked_pause_s(headers.get("Retry-After"), pause_s)
            await self._sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise AssertionError("the last try returns")

    def _end(self, how: str, line: bytes) -> None:
        self.counts[how] += 1
        if line:
            self._output.write(line)
            self._output.flush()  # what a kill leaves is what --resume goes on with
        self._on_end()


def _asked_pause_s(retry_after: str | None, default_s: float) -> float:
    try:
        return min(float(retry_after or default_s), _LONGEST_PAUSE_S)
    except ValueError:  # a date
        return default_s


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
