"""`pagewire engine` with several clients: an HTTP frontend, the embedded client, and one that goes away."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagewire.frontend.client.sync_client import EngineClient
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = Path("/tmp") / f"pw-engine-{os.getpid()}.sock"
    directory = tmp_path_factory.mktemp("engine")
    engine = RunningServer(["engine", str(tiny_checkpoint()), "--listen", f"ipc://{path}"], directory)
    yield f"ipc://{path}"
    assert engine.stop() == 0
    assert not path.exists()


def drain(client: EngineClient, prompt: list[int], params: SamplingParams) -> list[int]:
    return [token for delta in client.generate(prompt, params) for token in delta.token_ids]


def test_frontend_and_client_share_one_engine(address: str, tmp_path: Path) -> None:
    with running_server(tmp_path, "--engine", address) as server, EngineClient(address) as client:
        assert server.descendants() == [server.process_of("pagewire.frontend.templates")], "it starts no engine"
        answer = server.post(
            "/v1/completions",
            {"prompt": [5, 6, 7], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True},
        )
        assert drain(client, [5, 6, 7], GREEDY) == answer["choices"][0]["token_ids"]


def test_client_that_leaves_disturbs_nobody(address: str) -> None:
    with EngineClient(address) as steady:
        expected = drain(steady, [9, 8, 7], GREEDY)
        leaving = EngineClient(address)
        streams = [
            leaving.generate([1, 2, index], SamplingParams(max_tokens=200, ignore_eos=True)) for index in range(3)
        ]
        assert next(iter(streams[0])).token_ids
        leaving.close()
        assert drain(steady, [9, 8, 7], GREEDY) == expected
        assert steady.call_utility("check_invariants")
        pool = steady.call_utility("pool")
        stats = steady.call_utility("stats")
        assert (pool["num_used_blocks"], stats["num_running"], stats["num_waiting"]) == (0, 0, 0)
