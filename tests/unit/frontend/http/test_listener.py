"""Addresses are bound before anything is loaded, and what is taken is said in one line."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pagewire.frontend.http.listener import describe_listeners, open_listeners
from pagewire.ipc.errors import MachineError
from pagewire.ipc.server_config import ServerConfig


def test_free_port_is_found_and_named():
    with open_listeners(ServerConfig(host="127.0.0.1", port=0)) as listeners:
        url = describe_listeners(listeners)
        host, port = url.removeprefix("http://").split(":")
        socket.create_connection((host, int(port))).close()


def test_taken_port_is_refused_by_number():
    with open_listeners(ServerConfig(host="127.0.0.1", port=0)) as listeners:
        port = listeners[0].getsockname()[1]
        with (
            pytest.raises(MachineError, match=rf"127\.0\.0\.1:{port}.*--port"),
            open_listeners(ServerConfig(host="127.0.0.1", port=port)),
        ):
            pass


def test_address_of_another_machine_is_refused():
    with pytest.raises(MachineError, match=r"203\.0\.113\.1"), open_listeners(ServerConfig(host="203.0.113.1", port=0)):
        pass


def test_socket_file_is_made_and_removed(tmp_path: Path):
    path = tmp_path / "http.sock"
    with open_listeners(ServerConfig(uds=str(path))) as listeners:
        assert describe_listeners(listeners) == f"unix:{path}"
        with pytest.raises(MachineError, match="--uds"), open_listeners(ServerConfig(uds=str(path))):
            pass
        assert path.exists(), "the refused one leaves the other's socket alone"
    assert not path.exists()


def test_socket_file_of_a_dead_server_is_replaced(tmp_path: Path):
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with open_listeners(ServerConfig(uds=str(path))):
        socket.socket(socket.AF_UNIX).close()


def test_file_that_is_no_socket_is_left_alone(tmp_path: Path):
    path = tmp_path / "precious.txt"
    path.write_text("data")
    with pytest.raises(MachineError), open_listeners(ServerConfig(uds=str(path))):
        pass
    assert path.read_text() == "data"
