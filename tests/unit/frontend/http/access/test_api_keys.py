"""API keys: which headers bring one, where they come from, and how they are compared."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest

from pagewire.frontend.http.access.api_keys import ApiKeys, load_api_keys
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.server_config import ServerConfig


@pytest.mark.parametrize("header", ["Bearer k1", "bearer k2", "BEARER  k1 ", "Bearer schlüssel"])
def test_each_key_is_let_in(header: str):
    assert ApiKeys(["k1", "k2", "schlüssel"]).allow(header)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer k", "Bearer k11", "k1", "Basic k1", "Token k1", "Bearer k1 k1", "Bearer k1,",
     "Bearer \udcff", "Bearer ключ", "Bearer\tk1", "bearer: k1", "\x00"],
)  # fmt: skip
def test_whatever_else_is_refused_and_breaks_nothing(header: str):
    assert not ApiKeys(["k1", "k2"]).allow(header)


def test_every_key_is_compared_in_constant_time_whichever_matches(monkeypatch: pytest.MonkeyPatch):
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or real(a, b))
    assert ApiKeys(["a", "much longer than the others", "c"]).allow("Bearer a")
    assert compared == [(32, 32)] * 3


def test_without_keys_nobody_is_asked():
    assert ApiKeys([]).allow("")
    assert not ApiKeys([]).are_needed


def test_keys_of_the_file_join_those_of_the_flags(tmp_path: Path):
    path = tmp_path / "keys"
    path.write_text("# the team's\nfrom-file\n\n  second  \r\n")
    keys = load_api_keys(ServerConfig(api_key=("from-flag",), api_key_file=str(path)))
    for key in ("from-flag", "from-file", "second"):
        assert keys.allow(f"Bearer {key}")
    for key in ("# the team's", "", "the"):
        assert not keys.allow(f"Bearer {key}")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"# only a comment\n", b"\xff\xfe"])
def test_file_without_keys_is_refused_rather_than_leaving_the_server_open(tmp_path: Path, content: bytes):
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"write one (key )?a line"):
        load_api_keys(ServerConfig(api_key_file=str(path)))


def test_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--api-key-file .*nothing.* can't be read"):
        load_api_keys(ServerConfig(api_key_file=str(tmp_path / "nothing")))
