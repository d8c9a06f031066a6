"""Attaching to a core: its facts, or why not."""

from __future__ import annotations

import pytest

from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.ipc.codec import PROTOCOL_VERSION
from pagewire.ipc.errors import ConfigError, EngineDead, ErrorInfo, MachineError, ProtocolError
from pagewire.ipc.requests import Hello
from tests.support.fake_core import FakeCore


async def test_handshake_brings_the_engines_facts():
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address, name="me") as client:
        assert client.info == core.info
        assert (await core.next(Hello)).client_name == "me"


async def test_connecting_to_nothing_names_the_address(tmp_path):
    with pytest.raises(EngineDead, match=r"ipc:///.*/nobody\.sock within 0\.05 s"):
        await AsyncEngineClient.connect(f"ipc://{tmp_path}/nobody.sock", timeout_s=0.05)


async def test_malformed_address_is_refused():
    with pytest.raises(ConfigError):
        await AsyncEngineClient.connect("localhost:80")


async def test_other_protocol_version_is_refused_naming_both():
    async with FakeCore(protocol_version=77) as core:
        with pytest.raises(ProtocolError, match=rf"77.*version {PROTOCOL_VERSION}\b"):
            await AsyncEngineClient.connect(core.address)


async def test_failed_start_is_raised_as_what_it_is():
    error = ErrorInfo(kind="MachineError", message="too little memory")
    async with FakeCore(hello_error=error) as core:
        with pytest.raises(MachineError, match="too little memory"):
            await AsyncEngineClient.connect(core.address)
