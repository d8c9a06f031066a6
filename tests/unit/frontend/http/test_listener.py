"""Addresses are bound before anything is loaded, and what is taken is said in one line."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pagewire.frontend.http.listener import describe_listeners, open_listeners, take_listeners
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


def test_several_frontends_share_a_port_that_nobody_else_gets():
    config = ServerConfig(host="127.0.0.1", port=0, api_server_count=2)
    with open_listeners(config) as held:
        port = held[0].getsockname()[1]
        shared = [sock for _ in range(2) for sock in take_listeners([os.dup(held[0].fileno())])]
        try:
            for sock in shared:
                sock.setblocking(False)
            num_accepted = [0, 0]
            while not all(num_accepted):
                with socket.create_connection(("127.0.0.1", port), timeout=5):
                    for index, sock in enumerate(shared):
                        try:
                            connection, _ = sock.accept()
                        except BlockingIOError:
                            continue
                        num_accepted[index] += 1
                        connection.close()
            for count in (1, 2):
                other = ServerConfig(host="127.0.0.1", port=port, api_server_count=count)
                with pytest.raises(MachineError, match="--port"), open_listeners(other):
                    pass
        finally:
            for sock in shared:
                sock.close()


def test_several_frontends_accept_from_one_socket_file(tmp_path: Path):
    path = tmp_path / "http.sock"
    with open_listeners(ServerConfig(uds=str(path), api_server_count=2)) as held:
        [shared] = take_listeners([os.dup(held[0].fileno())])
        with shared, socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            connection, _ = shared.accept()
            connection.close()
