from __future__ import annotations

import contextlib
import socket
import stat
from pathlib import Path

import pytest

from pagewire.ipc.endpoints import (
    RuntimeDir,
    check_address,
    check_listen_address,
    core_address,
    ipc_path,
    is_in_use,
    reachable_address,
)
from pagewire.ipc.errors import ConfigError, MachineError


@pytest.mark.parametrize("address", ["ipc:///tmp/x.sock", "tcp://127.0.0.1:5555", "tcp://[::1]:1", "tcp://host:65535"])
def test_an_absolute_path_or_a_host_and_port_is_an_address(address: str):
    check_address(address)


@pytest.mark.parametrize(
    ("address", "part"),
    [
        ("/tmp/x.sock", "no address"),
        ("http://host:1", "no address"),
        ("localhost:5555", "no address"),
        ("tcp://127.0.0.1", "no address"),
        ("tcp://:5555", "no address"),
        ("tcp://host:0", "no address"),
        ("tcp://host:65536", "no address"),
        ("tcp://host:²", "no address"),
        ("tcp://host:-1", "no address"),
        ("", "no address"),
        ("ipc://", "absolute path"),
        ("ipc://x.sock", "absolute path"),
        ("ipc:///" + "x" * 107, "longer than the 107 bytes"),
        ("ipc:///" + "é" * 54, "longer than the 107 bytes"),
    ],
)
def test_what_nobody_could_reach_is_refused(address: str, part: str):
    with pytest.raises(ConfigError, match=part):
        check_address(address)


def test_the_network_needs_keys_or_a_word():
    with pytest.raises(ConfigError, match=r"--curve-key .*--insecure"):
        check_listen_address("tcp://0.0.0.0:5555")
    check_listen_address("tcp://0.0.0.0:5555", insecure=True)
    check_listen_address("tcp://0.0.0.0:5555", has_keys=True)


def test_a_listener_that_nobody_could_name_is_refused():
    with pytest.raises(ConfigError, match=r"no\.such\.interface is no address"):
        check_listen_address("tcp://no.such.interface:5555", insecure=True)
    for host in ("*", "127.0.0.1", "localhost", "[::1]"):
        check_listen_address(f"tcp://{host}:5555", insecure=True)


def test_keys_are_for_the_network(tmp_path: Path):
    for check in (check_address, check_listen_address):
        with pytest.raises(ConfigError, match="takes no keys"):
            check(f"ipc://{tmp_path}/x.sock", has_keys=True)


@pytest.mark.parametrize(("mode", "is_refused"), [(0o777, True), (0o1777, False), (0o755, False)])
def test_a_directory_where_anybody_could_swap_the_socket_is_refused(tmp_path: Path, mode: int, is_refused: bool):
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(ConfigError, match="writable for all") if is_refused else contextlib.nullcontext():
        check_listen_address(f"ipc://{directory}/x.sock")


@pytest.mark.parametrize(
    ("listens", "reached"),
    [
        ("tcp://*:1", "tcp://127.0.0.1:1"),
        ("tcp://0.0.0.0:1", "tcp://127.0.0.1:1"),
        ("tcp://[::]:1", "tcp://[::1]:1"),
        ("tcp://10.0.0.1:1", "tcp://10.0.0.1:1"),
        ("ipc:///tmp/x", "ipc:///tmp/x"),
    ],
)
def test_an_engine_on_all_interfaces_is_reached_by_the_loopback(listens: str, reached: str):
    assert reachable_address(listens) == reached


def test_a_socket_needs_a_directory_and_no_other_engine(tmp_path: Path):
    with pytest.raises(ConfigError, match="does not exist"):
        check_listen_address(f"ipc://{tmp_path}/none/x.sock")
    path = tmp_path / "x.sock"
    check_listen_address(f"ipc://{path}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        assert is_in_use(path)
        with pytest.raises(MachineError, match="Another engine"):
            check_listen_address(f"ipc://{path}")
    assert path.exists()
    assert not is_in_use(path)  # left behind by a process that was killed
    check_listen_address(f"ipc://{path}")


def test_only_ipc_addresses_have_a_file():
    assert ipc_path("ipc:///tmp/x") == Path("/tmp/x")
    assert ipc_path("tcp://host:1") is None


def test_sockets_of_one_engine_lie_in_a_directory_of_the_user_alone():
    runtime = RuntimeDir()
    assert stat.S_IMODE(runtime.path.stat().st_mode) == 0o700
    addresses = {
        runtime.client_address,
        *(
            runtime.executor_address(core_epoch, epoch, rank)
            for core_epoch in (1, 2)
            for epoch in (1, 2)
            for rank in (0, 1)
        ),
    }
    assert len(addresses) == 9
    for address in addresses:
        check_address(address)
    (runtime.path / "core.sock").touch()
    runtime.remove()
    runtime.remove()
    assert not runtime.path.exists()


def test_a_directory_too_deep_for_a_socket_is_refused_and_left_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(MachineError, match="set TMPDIR"):
        RuntimeDir()
    assert list(deep.iterdir()) == []


def test_files_of_a_killed_cores_executors_are_removed_and_no_others():
    runtime = RuntimeDir()
    of_core_1 = {"executor-1-1-0.sock", "executor-1-2-0.sock", runtime.rendezvous_path(core_epoch=1, epoch=2).name}
    of_others = {"core.sock", "executor-11-1-0.sock", "executor-2-1-0.sock", runtime.rendezvous_path(11, 1).name}
    for name in of_core_1 | of_others:
        (runtime.path / name).touch()
    runtime.remove_executors(core_epoch=1)
    assert {path.name for path in runtime.path.iterdir()} == of_others
    runtime.remove()


def test_cores_of_one_engine_listen_side_by_side():
    assert [core_address("ipc:///tmp/a.sock", rank) for rank in (0, 1)] == ["ipc:///tmp/a.sock", "ipc:///tmp/a.sock.1"]
    assert [core_address("tcp://[::1]:5000", rank) for rank in (0, 2)] == ["tcp://[::1]:5000", "tcp://[::1]:5002"]
