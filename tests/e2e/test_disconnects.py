"""Clients that vanish at every point of their request, watched from inside the engine by a second client."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pagewire.frontend.client.sync_client import EngineClient
from tests.support.children import wait_until
from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

NUM_ROUNDS = 100


class Watched(NamedTuple):
    """A server, and a client of its engine."""

    server: RunningServer
    engine: EngineClient

    def check_idle(self) -> None:
        """Wait until nothing runs and nothing waits; then no block may be in use and every count must be right."""
        # Blocks too: requests that were reset on their way in may come and go between two looks.
        wait_until(self._is_idle, 20, "the end of all requests and of their blocks")
        assert self.engine.call_utility("check_invariants")

    def _is_idle(self) -> bool:
        pool = self.engine.call_utility("pool")
        counts = (self.stats["num_running"], self.stats["num_waiting"], pool["num_used_blocks"])
        return counts == (0, 0, 0) and pool["num_free_blocks"] == pool["num_blocks"]

    @property
    def stats(self) -> dict[str, Any]:
        """The engine's own figures."""
        stats: dict[str, Any] = self.engine.call_utility("stats")
        return stats


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """An engine of small steps, so that a long prompt takes many."""
    path = Path("/tmp") / f"pw-watched-{os.getpid()}.sock"
    arguments = ["engine", str(tiny_checkpoint()), "--listen", f"ipc://{path}"]
    engine = RunningServer(
        [*arguments, "--max-num-batched-tokens", "16", "--max-num-seqs", "16"], tmp_path_factory.mktemp("engine")
    )
    frontend = running_server(tmp_path_factory.mktemp("frontend"), "--engine", f"ipc://{path}")
    with frontend as server, EngineClient(f"ipc://{path}") as client:
        yield Watched(server, client)
    assert engine.stop() == 0


class Request:
    """A request on a connection of its own."""

    def __init__(self, server: RunningServer, body: dict[str, Any]) -> None:
        self._connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        body = {"temperature": 0, "ignore_eos": True, "return_token_ids": True, **body}
        self._connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})

    def read_one_event(self) -> list[int]:
        """Return the token ids of the stream's first event."""
        self._response = self._connection.getresponse()
        return _token_ids([self._response.readline()])

    def read_all(self) -> list[int]:
        """Return the token ids of a whole stream."""
        lines = self._connection.getresponse().read().split(b"\n\n")
        self._connection.close()
        assert lines[-2:] == [b"data: [DONE]", b""]
        return _token_ids(lines[:-2])

    def reset(self) -> None:
        """Close with a RST, as a killed peer does."""
        sock = self._connection.sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._connection.close()


def _token_ids(events: list[bytes]) -> list[int]:
    choices = [json.loads(line.removeprefix(b"data: "))["choices"][0] for line in events]
    return [token_id for choice in choices for token_id in choice.get("token_ids") or []]


def test_resets_leave_the_other_streams_and_the_pool_as_they_were(watched: Watched) -> None:
    bodies = [{"prompt": [11, 12, 13, index], "max_tokens": 20, "stream": True} for index in range(4)]
    expected = [Request(watched.server, body).read_all() for body in bodies]
    for _ in range(NUM_ROUNDS):
        leaving = [Request(watched.server, {**body, "max_tokens": 300}) for body in bodies]
        staying = [Request(watched.server, body) for body in bodies]
        for request in leaving:
            assert request.read_one_event()
            request.reset()
        assert [request.read_all() for request in staying] == expected
        assert watched.engine.call_utility("check_invariants")
    watched.check_idle()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("is_streaming", [False, True])
def test_client_that_leaves_amid_its_prefill_is_aborted(watched: Watched, is_streaming: bool, n: int) -> None:
    before = watched.stats["num_generation_tokens"]
    body = {"prompt": [5 + index % 300 for index in range(256)], "max_tokens": 250, "stream": is_streaming, "n": n}
    requests = [
        Request(watched.server, {**body, "temperature": 1, "cache_salt": f"{is_streaming} {n} {index}"})
        for index in range(12)
    ]

    def has_begun() -> bool:
        return any(table["num_computed_tokens"] > 0 for table in watched.engine.call_utility("block_tables"))

    wait_until(has_begun, 20, "the first chunk of a prompt")
    for request in requests:
        request.reset()
    watched.check_idle()
    # 12 prompts of 16 steps each: had they run on, each would have drawn its 250 tokens.
    assert watched.stats["num_generation_tokens"] - before < len(requests) * n * 250


def test_turn_that_broke_off_leaves_nothing_in_the_next_one(watched: Watched) -> None:
    first = [5 + 3 * index % 200 for index in range(40)]
    for number in range(10):
        salt = f"conversation {number}"
        broken = Request(watched.server, {"prompt": first, "max_tokens": 400, "stream": True, "cache_salt": salt})
        heard = broken.read_one_event()
        broken.reset()
        second = [*first, *heard, 7, 8, number]
        body = {"prompt": second, "max_tokens": 12, "stream": True}
        warm = Request(watched.server, {**body, "cache_salt": salt}).read_all()
        cold = Request(watched.server, {**body, "cache_salt": f"nobody's {number}"}).read_all()
        assert len(warm) == 12
        assert warm == cold
    watched.check_idle()
