"""The blocking client against a scripted core that lives on another thread's loop."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap

import pytest

from pagewire.frontend.client.loop_thread import LoopThread
from pagewire.frontend.client.sync_client import EngineClient
from pagewire.ipc.errors import EngineDead, InvalidRequest, Overloaded
from pagewire.ipc.requests import AbortRequests, AddRequest
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.fake_core import FakeCore


class Running:
    """A fake core on a thread of its own."""

    def __init__(self, **options) -> None:
        self.thread = LoopThread("fake-core")
        self.core = self.thread.run(self._start(options))

    async def _start(self, options) -> FakeCore:
        return await FakeCore(**options).__aenter__()

    def next(self, kind):
        return self.thread.run(self.core.next(kind))

    def close(self) -> None:
        self.thread.run(self.core.__aexit__(None, None, None))
        self.thread.close()


@pytest.fixture
def start():
    running: list[Running] = []

    def start(**options) -> Running:
        running.append(Running(**options))
        return running[-1]

    yield start
    for core in running:
        core.close()


def test_tokens_are_iterated_synchronously(start):
    core = start().core
    with EngineClient(core.address, name="script") as client:
        assert client.info == core.info
        stream = client.generate([1, 2], SamplingParams(max_tokens=3))
        stream.accepted()
        assert [token for delta in stream for token in delta.token_ids] == [10, 11, 12]
        assert stream.start is not None
        assert stream.end is not None
        assert client.stats is not None
        assert client.call_utility("echo", 5) == ["echo", 5]


async def test_it_works_under_a_running_loop(start):
    with EngineClient(start().core.address) as client:
        [*deltas] = client.generate([1], SamplingParams(max_tokens=2))
        assert sum(len(delta.token_ids) for delta in deltas) == 2


@pytest.mark.parametrize("how", ["close", "drop", "context"])
def test_leaving_a_stream_early_aborts_its_request(start, how):
    running = start(num_steps=1)
    with EngineClient(running.core.address) as client:
        stream = client.generate([1], SamplingParams(max_tokens=None))
        next(stream)
        if how == "close":
            stream.close()
        elif how == "context":
            with stream:
                pass
        del stream
        gc.collect()
        assert running.next(AbortRequests).request_ids == [1]


def test_errors_are_raised_in_the_calling_thread(start):
    running = start(refuses=lambda request: Overloaded("full"))
    with EngineClient(running.core.address) as client:
        with pytest.raises(InvalidRequest):
            client.generate([], SamplingParams())
        with pytest.raises(Overloaded, match="full"):
            client.generate([1], SamplingParams()).accepted()


def test_connecting_to_nothing_fails_and_leaves_no_thread(tmp_path):
    with pytest.raises(EngineDead, match=r"nobody\.sock"):
        EngineClient(f"ipc://{tmp_path}/nobody.sock", timeout_s=0.05)


def test_closing_twice_is_fine(start):
    running = start(num_steps=0)
    client = EngineClient(running.core.address)
    client.generate([1], SamplingParams())
    running.next(AddRequest)
    client.close()
    client.close()


def test_a_closed_client_says_so_whatever_is_asked_of_it(start):
    client = EngineClient(start(num_steps=0).core.address)
    stream = client.generate([1], SamplingParams())
    client.close()
    stream.close()
    for ask in (
        lambda: next(stream),
        stream.accepted,
        lambda: client.generate([1], SamplingParams()),
        lambda: client.call_utility("echo"),
    ):
        with pytest.raises(EngineDead, match="closed"):
            ask()


def test_a_script_that_never_closes_ends(start):
    program = """
        import sys
        from pagewire import EngineClient, SamplingParams
        client = EngineClient(sys.argv[1])
        stream = client.generate([1], SamplingParams(max_tokens=None))
        print(next(stream).token_ids[0])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), start().core.address],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "10\n", "")
