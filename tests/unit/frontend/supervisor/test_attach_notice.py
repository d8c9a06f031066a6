"""A frontend whose engine does not answer says what it waits for."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest

from pagewire.frontend.supervisor.attach_notice import describe_silence, noticing_silence

MISSING = "ipc:///nowhere/pagewire.sock"


async def turn_of_the_loop() -> None:
    """Return when what was due before has been called."""
    due = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0, due.set_result, None)
    await due


async def test_long_wait_is_told_once_with_address_and_limit(caplog: pytest.LogCaptureFixture) -> None:
    with noticing_silence(MISSING, 600, after_s=0):
        for _ in range(3):
            await turn_of_the_loop()
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert f"no engine listens at {MISSING} yet" in record.getMessage()
    assert f"`pagewire engine --listen {MISSING}`" in record.getMessage()
    assert record.getMessage().endswith("waiting up to 600 s")


async def test_engine_that_answers_in_time_needs_no_word(caplog: pytest.LogCaptureFixture) -> None:
    with noticing_silence(MISSING, 600, after_s=0):
        pass
    await turn_of_the_loop()
    assert caplog.records == []


def test_what_is_seen_of_the_address_is_said(tmp_path: Path) -> None:
    assert "there is no file /nowhere/pagewire.sock" in describe_silence(MISSING)
    (tmp_path / "file").touch()
    assert "is a file of another kind" in describe_silence(f"ipc://{tmp_path}/file")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/left.sock")
    assert "have ended and left the file" in describe_silence(f"ipc://{tmp_path}/left.sock")
    assert "and host, port and keys" in describe_silence("tcp://127.0.0.1:5555")
