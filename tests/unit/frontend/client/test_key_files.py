"""Key files: made once, secret ones for their owner alone, read strictly."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import zmq.auth

from pagewire.frontend.client.key_files import make_key_files, read_client_keys, read_server_keys
from pagewire.ipc.errors import ConfigError, MachineError


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    directory = tmp_path / "keys"
    make_key_files(directory, ["engine", "alice", "bob"])
    return directory


def test_both_ends_read_what_was_made(keys: Path):
    server = read_server_keys(keys / "engine.key_secret", [keys / "alice.key", keys / "bob.key"])
    client = read_client_keys(keys / "engine.key", keys / "alice.key_secret")
    assert client.server == server.own.public
    assert server.clients[client.own.public] == "alice"
    assert sorted(server.clients.values()) == ["alice", "bob"]


def test_a_directory_stands_for_the_public_keys_in_it(keys: Path):
    server = read_server_keys(keys / "engine.key_secret", [keys])
    assert sorted(server.clients.values()) == ["alice", "bob", "engine"]


def test_secret_keys_are_their_owners_alone(keys: Path):
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    for path in keys.iterdir():
        is_secret = path.suffix == ".key_secret"
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == (0 if is_secret else 0o044)
        public, secret = zmq.auth.load_certificate(path)  # other tools read them too
        assert (secret is not None) == is_secret
        if secret is not None:
            assert zmq.curve_public(secret) == public


def test_files_of_other_tools_are_read(tmp_path: Path, keys: Path):
    public, secret = zmq.auth.create_certificates(tmp_path, "other")
    Path(secret).chmod(0o600)
    assert read_client_keys(keys / "engine.key", secret).own.public == zmq.auth.load_certificate(public)[0].decode()


def test_keys_are_never_written_over(keys: Path):
    before = {path: path.read_text() for path in keys.iterdir()}
    with pytest.raises(ConfigError, match=r"alice\.key exists already"):
        make_key_files(keys, ["carol", "alice"])
    assert {path: path.read_text() for path in keys.iterdir()} == before, "nor are others made half"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x" * 65, "a\n"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match="no name for keys"):
        make_key_files(tmp_path, [name])
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_the_machines_fault(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="Can't write keys"):
        make_key_files(tmp_path / "file" / "keys", ["a"])


def test_a_secret_key_that_anybody_can_read_is_refused(keys: Path):
    secret = keys / "alice.key_secret"
    secret.chmod(0o604)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_client_keys(keys / "engine.key", secret)
    secret.chmod(0o640)  # as orchestrators mount secrets for a group
    read_client_keys(keys / "engine.key", secret)


def test_public_keys_that_anybody_can_change_are_refused(keys: Path):
    keys.chmod(0o1777)
    with pytest.raises(ConfigError, match=rf"chmod o-w {keys}"):
        read_server_keys(keys / "engine.key_secret", [keys])
    (keys / "engine.key").chmod(0o666)
    with pytest.raises(ConfigError, match=r"chmod o-w .*engine\.key"):
        read_client_keys(keys / "engine.key", keys / "alice.key_secret")


def test_a_public_key_is_no_secret_one(keys: Path):
    with pytest.raises(ConfigError, match=r"alice\.key holds no secret key; give the file that ends in \.key_secret"):
        read_client_keys(keys / "engine.key", keys / "alice.key")


def test_keys_that_are_no_pair_are_refused(keys: Path):
    secret = keys / "alice.key_secret"
    public, _ = zmq.auth.load_certificate(secret)
    other, _ = zmq.auth.load_certificate(keys / "bob.key")
    secret.write_text(secret.read_text().replace(public.decode(), other.decode()))
    with pytest.raises(ConfigError, match="no pair"):
        read_client_keys(keys / "engine.key", secret)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "can't be read"),
        (b"", "no key file"),
        (b"hello", "no key file"),
        (b"\xff\xfe\0", "no key file"),
        (b'public-key = "\xff"', "no key file"),
        (b'public-key = "short"', "40 characters"),
    ],
)
def test_what_is_no_key_file_is_refused_by_name(keys: Path, content: bytes | None, part: str):
    file = keys / "broken.key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"broken\.key.*{part}"):
        read_client_keys(file, keys / "alice.key_secret")
    with pytest.raises(ConfigError, match=part):
        read_server_keys(keys / "engine.key_secret", [file])


def test_a_directory_without_keys_lets_nobody_in_and_is_refused(keys: Path, tmp_path: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match=r"holds no \*\.key file"):
        read_server_keys(keys / "engine.key_secret", [empty])
