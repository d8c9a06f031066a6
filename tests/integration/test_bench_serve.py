"""`pagewire bench serve` as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys

from pagewire.ipc.requests import AddRequest
from tests.support.http_server import aborted, running_server


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pagewire", "bench", "serve", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_the_table_goes_to_standard_output_and_no_bar_into_a_file():
    async with running_server("hello") as server:
        process = await start("--base-url", server.url, "--num-prompts", "3", "--random-input-len", "8")
        out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert b"Successful requests:                     3         \n" in out


async def test_ctrl_c_shows_what_was_measured_and_ends_every_request():
    # The test request takes six steps; the first measured one, alone under way, another six.
    async with running_server("hello", num_steps=12) as server:
        process = await start(
            "--base-url", server.url, "--num-prompts", "5", "--random-input-len", "8", "--max-concurrency", "1",
        )  # fmt: skip
        await server.core.next(AddRequest, count=3)
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
        await aborted(server.core)
    assert (process.returncode, err) == (130, b"")
    assert b"Successful requests:                     1         \n" in out
    assert b"Interrupted: 1 of 5 requests had ended. Nothing was saved." in out
