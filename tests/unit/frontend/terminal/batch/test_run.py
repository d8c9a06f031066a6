from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pagewire.frontend.terminal.batch.config import BatchConfig
from pagewire.frontend.terminal.batch.files import answered_before, count_requests, open_output
from pagewire.frontend.terminal.batch.lines import BatchRequest, answer_line
from pagewire.frontend.terminal.batch.run import Batch, run
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import ConfigError, MachineError
from tests.support.http_server import message, running_server


def request(custom_id: str, url: str = "/v1/completions", **body: object) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": {"prompt": "p", **body}})


def answers(path: Path) -> dict[str | None, Any]:
    return {each["custom_id"]: each for each in map(json.loads, path.read_text().splitlines())}


async def test_a_file_is_answered_and_a_broken_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    given, made = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    chat = json.dumps({"custom_id": "chat", "url": "/v1/chat/completions", "body": {"messages": [message("hi")]}})
    given.write_text("\n".join([request("a"), chat, "garbage", "", request("a"), request("bad", temperature=-1)]))

    def batch(**flags: Any) -> int:
        config = BatchConfig(input_file=str(given), output_file=str(made), url=server.url, max_concurrency=2, **flags)
        return run(config, EngineConfig())

    async with running_server("hello") as server:
        assert await asyncio.to_thread(batch) == 1
        found = answers(made)
        assert found["chat"]["response"]["body"]["choices"][0]["message"]["content"] == "hello"
        assert found["bad"]["response"]["status_code"] == 400
        assert "line 3: no request of a batch" in found[None]["error"]["message"]
        assert "2 answered, 3 failed" in capsys.readouterr().err

        with pytest.raises(ConfigError, match="--resume goes on with them"):
            await asyncio.to_thread(batch)
        # A kill leaves half a line; what was asked meanwhile comes on top.
        lines = [line for line in made.read_text().splitlines() if '"chat"' not in line and "line 5" not in line]
        made.write_text("\n".join([*lines, '{"id": "batch_req_9", "cus']))
        num_before = server.core.num_generation_tokens
        given.write_text("\n".join([request("a"), chat, request("bad", temperature=-1)]))
        assert await asyncio.to_thread(batch, resume=True) == 0
        assert set(answers(made)) == {"a", "chat", "bad"}
        assert "1 answered, 2 were answered before" in capsys.readouterr().err
        assert server.core.num_generation_tokens - num_before == len("hello") + 1
        assert await asyncio.to_thread(batch, overwrite=True) == 1


class EchoConnection:
    """Answers each request at once."""

    async def post(self, _path: str, body: Any) -> tuple[int, Mapping[str, str], bytes]:
        return 200, {}, json.dumps(body["prompt"]).encode()


async def test_requests_of_a_pipe_are_answered_as_they_come(tmp_path: Path):
    pipe = tmp_path / "in"
    os.mkfifo(pipe)
    assert count_requests(str(pipe)) is None
    ended: asyncio.Queue[int] = asyncio.Queue()
    with (tmp_path / "out").open("wb") as output:
        batch = Batch(EchoConnection(), output, frozenset(), lambda: ended.put_nowait(1))
        running = asyncio.create_task(batch.run(str(pipe), max_concurrency=3))
        writer = await asyncio.to_thread(pipe.open, "w")
        with writer:
            for custom_id in "ab":
                writer.write(request(custom_id) + "\n")
                writer.flush()
                await ended.get()  # though the pipe is open, and brings nothing
        await running
    assert batch.counts == {"answered": 2}


async def test_a_pipe_that_brings_nothing_does_not_hold_a_batch_that_is_broken_off(tmp_path: Path):
    pipe = tmp_path / "in"
    os.mkfifo(pipe)
    with (tmp_path / "out").open("wb") as output:
        running = asyncio.create_task(Batch(EchoConnection(), output, frozenset(), int).run(str(pipe), 3))
        with await asyncio.to_thread(pipe.open, "w"):
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running


def test_a_server_that_is_not_there_costs_no_answers(tmp_path: Path):
    given, made = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text(request("a"))
    made.write_text("answers of yesterday\n")
    config = BatchConfig(input_file=str(given), output_file=str(made), url="http://127.0.0.1:9", overwrite=True)
    with pytest.raises(MachineError, match="can't be reached"):
        run(config, EngineConfig())
    assert made.read_text() == "answers of yesterday\n"


def test_a_full_disk_is_told_in_a_line():
    def fill() -> None:
        with open_output(BatchConfig(input_file="-", output_file="/dev/full", overwrite=True)) as output:
            output.write(b"x")
            output.flush()

    with pytest.raises(MachineError, match="/dev/full can't be written: No space left"):
        fill()


def test_answers_that_are_kept_end_in_their_lines(tmp_path: Path):
    path = tmp_path / "out"
    path.write_bytes(answer_line(BatchRequest("a", "/v1/completions", {}), 200, None, b"{}").rstrip())
    config = BatchConfig(input_file="-", output_file=str(path), resume=True)
    assert answered_before(config) == {"a"}
    assert path.read_bytes().endswith(b"}\n")
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_the_requests_are_not_written_over(tmp_path: Path):
    path = tmp_path / "in"
    path.write_text(request("a"))
    with pytest.raises(ConfigError, match="holds the requests"):
        answered_before(BatchConfig(input_file=str(path), output_file=str(tmp_path / "." / "in"), overwrite=True))


class BusyConnection:
    """Answers 503 so often, and then breaks off or answers."""

    def __init__(self, num_busy: int, *, breaks: bool = False) -> None:
        self._num_busy = num_busy
        self._breaks = breaks
        self.num_calls = 0

    async def post(self, _path: str, _body: object) -> tuple[int, Mapping[str, str], bytes]:
        self.num_calls += 1
        if self._breaks:
            raise ConnectionResetError("reset")
        return (503, {"Retry-After": "7"}, b"{}") if self.num_calls <= self._num_busy else (200, {}, b"{}")


@pytest.mark.parametrize(
    ("connection", "pauses_s", "how"),
    [
        (BusyConnection(2), [7, 7], "answered"),
        (BusyConnection(9), [7, 7, 7], "failed"),
        (BusyConnection(0, breaks=True), [1, 2, 4], "failed"),
    ],
)
async def test_a_busy_server_is_asked_again_after_the_time_that_it_says(
    connection: Any, pauses_s: list[float], how: str, tmp_path: Path
):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    (tmp_path / "in").write_text(request("a"))
    with (tmp_path / "out").open("wb") as output:
        batch = Batch(connection, output, frozenset(), lambda: None, sleep)
        await batch.run(str(tmp_path / "in"), max_concurrency=1)
    assert (pauses, dict(batch.counts)) == (pauses_s, {how: 1})


def test_only_a_file_with_answers_is_in_the_way(tmp_path: Path):
    path = tmp_path / "out"
    config = BatchConfig(input_file="-", output_file=str(path))
    assert answered_before(config) == frozenset()
    path.touch()
    assert answered_before(config) == frozenset()
    assert answered_before(BatchConfig(input_file="-", output_file="-")) == frozenset()
    with pytest.raises(ConfigError, match="give one"):
        BatchConfig(input_file="-", output_file="x", resume=True, overwrite=True)
