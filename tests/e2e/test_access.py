"""`pagewire engine` on tcp:// with keys: who is let in, who is not, and what tenants see of each other."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pagewire.frontend.client.key_files import make_key_files, read_client_keys
from pagewire.frontend.client.sync_client import EngineClient
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.children import children_of
from tests.support.listening import tcp_ports, unix_paths
from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PROMPT = list(range(3, 60))  # three whole blocks and more


class GuardedEngine(NamedTuple):
    address: str
    keys: Path
    pid: int  # of the process that supervises its core


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedEngine]:
    directory = tmp_path_factory.mktemp("engine")
    keys = directory / "keys"
    make_key_files(keys, ["engine"])
    make_key_files(keys / "clients", ["web", "batch"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = RunningServer(
        [
            "engine", str(tiny_checkpoint()), "--listen", f"tcp://*:{port}",
            "--curve-key", f"{keys}/engine.key_secret", "--allow-clients", f"{keys}/clients",
        ],
        directory,
    )  # fmt: skip
    yield GuardedEngine(f"tcp://127.0.0.1:{port}", keys, running.pid)
    assert running.stop() == 0


@pytest.fixture
def client(engine: GuardedEngine) -> Iterator[EngineClient]:
    keys = read_client_keys(engine.keys / "engine.key", engine.keys / "clients" / "batch.key_secret")
    with EngineClient(engine.address, keys=keys, timeout_s=60) as client:
        yield client


def answer(client: EngineClient, salt: str = "") -> tuple[list[int], int]:
    """The tokens, and how many of the prompt's came from the cache."""
    stream = client.generate(PROMPT, GREEDY, cache_salt=salt)
    tokens = [token for delta in stream for token in delta.token_ids]
    assert stream.start is not None
    return tokens, stream.start.num_cached_tokens


def test_a_frontend_and_a_client_with_keys_share_the_engine(
    engine: GuardedEngine, client: EngineClient, tmp_path: Path
) -> None:
    own_key = f"{engine.keys}/clients/web.key_secret"
    flags = ["--engine", engine.address, "--engine-key", f"{engine.keys}/engine.key", "--curve-key", own_key]
    body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    with running_server(tmp_path, *flags) as server:
        (choice,) = server.post("/v1/completions", body)["choices"]
    assert choice["token_ids"] == answer(client)[0]


def test_a_key_that_the_engine_does_not_know_is_refused_at_once(engine: GuardedEngine, tmp_path: Path) -> None:
    make_key_files(tmp_path, ["stranger"])
    keys = read_client_keys(engine.keys / "engine.key", tmp_path / "stranger.key_secret")
    with pytest.raises(ConfigError, match="--allow-clients"):
        EngineClient(engine.address, keys=keys, timeout_s=60)


def test_a_client_without_keys_is_refused_at_once(engine: GuardedEngine) -> None:
    with pytest.raises(ConfigError, match="keys"):
        EngineClient(engine.address, timeout_s=60)


class _Bomb:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._path,)


def test_a_pickle_at_the_port_is_dropped(engine: GuardedEngine, client: EngineClient, tmp_path: Path) -> None:
    bomb = pickle.dumps(_Bomb(tmp_path / "taken-over"))
    pickle.loads(bomb)
    assert (tmp_path / "taken-over").exists(), "the bomb works"
    (tmp_path / "taken-over").unlink()
    host, _, port = engine.address.removeprefix("tcp://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(bomb)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(4096):  # ZeroMQ's greeting; then the engine hangs up
                pass
    assert answer(client, "after the bomb")[0]
    assert list(tmp_path.iterdir()) == []


def test_tenants_with_salts_share_no_cached_blocks(client: EngineClient) -> None:
    cold = answer(client, "tenant a")
    warm = answer(client, "tenant a")
    other = answer(client, "tenant b")
    assert cold[1] == other[1] == 0
    assert warm[1] > 0
    assert cold[0] == warm[0] == other[0]


def test_streams_go_on_over_the_network_when_the_core_is_killed(engine: GuardedEngine, client: EngineClient) -> None:
    params = SamplingParams(temperature=1, seed=7, max_tokens=120, ignore_eos=True)
    undisturbed = [token for delta in client.generate(PROMPT, params) for token in delta.token_ids]
    with client.generate(PROMPT, params, cache_salt="killed") as stream:
        tokens = list(next(stream).token_ids)
        (core,) = children_of(engine.pid)
        os.kill(core, signal.SIGKILL)
        tokens += [token for delta in stream for token in delta.token_ids]
    assert tokens == undisturbed


def test_a_server_listens_on_its_port_and_for_its_own_user_alone(tiny: RunningServer) -> None:
    processes = [tiny.pid, *tiny.descendants()]
    assert tcp_ports(processes) == {int(tiny.url.rpartition(":")[2])}
    sockets = [Path(path) for path in unix_paths(processes)]
    assert len(sockets) >= 2, "of the core and of an executor"
    for path in sockets:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    (core,) = [path for path in sockets if path.name == "core.sock"]
    assert stat.S_IMODE(core.stat().st_mode) == 0o600
