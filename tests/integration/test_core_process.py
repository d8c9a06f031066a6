"""The core's poll loop over real sockets and a real (fake) executor process: greetings, answers, deaths, stop."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zmq

from pagewire.engine_core.engine import Engine
from pagewire.engine_core.loop import EngineCore
from pagewire.ipc.codec import PROTOCOL_VERSION, core_messages, encode
from pagewire.ipc.config import EngineConfig, ModelOptions, SchedulerConfig
from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.outputs import CoreMessage, Goodbye, Ready, RequestEnd, StepOutputs, UtilityResult
from pagewire.ipc.requests import AbortRequests, AddRequest, CallUtility, GenerateTask, Hello, Message, TokenInputs
from pagewire.ipc.sampling_params import Sampling
from tests.support.children import make_importable
from tests.support.fake_executor_process import CONFUSED, EXITS, FAILS, NO_MEMORY
from tests.support.tiny_model import tiny_checkpoint

WAIT_MS = 20_000


@dataclass
class PipeWatch:
    """A parent that orders a stop by closing a pipe, as a real one closes standard input."""

    parent_is_dead: bool = False
    _pipe: tuple[int, int] = field(default_factory=os.pipe)

    @property
    def fds(self) -> list[int]:
        return [self._pipe[0]]

    def order_stop(self) -> None:
        os.close(self._pipe[1])

    def close(self) -> None:
        os.close(self._pipe[0])


class RunningCore:
    """An `EngineCore` on a thread of this process."""

    def __init__(self, config: EngineConfig) -> None:
        self.runtime_dir = RuntimeDir()
        self.watch = PipeWatch()
        core = EngineCore(
            config,
            address=self.runtime_dir.client_address,
            runtime_dir=self.runtime_dir,
            watch=self.watch,
            executor_module="tests.support.fake_executor_process",
        )
        self.exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, args=(core,))
        self._thread.start()

    def _run(self, core: EngineCore) -> None:
        self.exit_code = core.run()

    def stop(self) -> int | None:
        self.watch.order_stop()
        return self.join()

    def join(self) -> int | None:
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()
        return self.exit_code


class Client:
    """A bare socket that speaks the protocol."""

    def __init__(self, core: RunningCore) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(core.runtime_dir.client_address)

    def send(self, message: Message | bytes) -> None:
        self._socket.send(message if isinstance(message, bytes) else encode(message))

    def receive(self) -> CoreMessage:
        assert self._socket.poll(WAIT_MS), "the core says nothing"
        return core_messages.decode(self._socket.recv())

    def greet(self) -> Ready:
        self.send(Hello(protocol_version=PROTOCOL_VERSION, client_name="test"))
        ready = self.receive()
        assert isinstance(ready, Ready), ready
        return ready

    def until_end(self, request_id: int) -> tuple[list[int], RequestEnd]:
        """Everything up to a request's terminal message: its tokens, and the message."""
        tokens: list[int] = []
        while True:
            message = self.receive()
            if not isinstance(message, StepOutputs):
                continue
            tokens += [t for delta in message.deltas if delta.request_id == request_id for t in delta.token_ids]
            for end in message.ends:
                if end.request_id == request_id:
                    return tokens, end

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def request(request_id: int, *prompt: int, max_tokens: int = 4) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        inputs=TokenInputs(prompt_token_ids=list(prompt)),
        task=GenerateTask(sampling=Sampling(temperature=0), max_tokens=max_tokens),
    )


@contextmanager
def running_core(monkeypatch: pytest.MonkeyPatch, *, seed: int | None = None) -> Iterator[tuple[RunningCore, Client]]:
    make_importable(monkeypatch)
    config = EngineConfig(
        model=ModelOptions(model="tiny", model_path=str(tiny_checkpoint()), max_model_len=200, seed=seed),
        scheduler=SchedulerConfig(max_num_seqs=8),
    )
    core = RunningCore(config)
    client = Client(core)
    try:
        yield core, client
    finally:
        client.close()
        if core.exit_code is None and core._thread.is_alive():
            core.stop()
        core.watch.close()
        core.runtime_dir.remove()


def test_ready_says_what_is_served_and_requests_are_answered(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        ready = client.greet()
        assert (ready.info.max_model_len, ready.info.num_blocks) == (200, 64)
        client.send(request(1, 5, 6, 7))
        tokens, end = client.until_end(1)
        assert len(tokens) == 4
        assert end.error is None
        assert core.stop() == 0
        assert isinstance(client.receive(), Goodbye)


def test_two_clients_use_the_same_ids_without_meeting(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        other = Client(core)
        other.greet()
        client.send(request(1, 5, 6, 7))
        other.send(request(1, 50, 60, 70))
        assert client.until_end(1)[0] != other.until_end(1)[0]
        other.close()


@pytest.mark.parametrize(
    "first", [request(1, 5), CallUtility(call_id=1, method="stats"), Hello(protocol_version=999), b"\xff no message"]
)
def test_who_does_not_greet_rightly_is_sent_away_and_the_core_goes_on(monkeypatch, first: Message | bytes):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        stranger = Client(core)
        stranger.send(first)
        goodbye = stranger.receive()
        assert isinstance(goodbye, Goodbye)
        assert goodbye.error.kind == "ProtocolError"
        stranger.close()
        client.send(request(1, 5, 6))
        assert client.until_end(1)[1].error is None


def test_unreadable_message_ends_its_client_alone_with_its_requests(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        broken = Client(core)
        broken.greet()
        broken.send(request(1, 9, 9, max_tokens=150))
        broken.send(b"\x93\x01\x02")
        while not isinstance(message := broken.receive(), Goodbye):
            assert isinstance(message, StepOutputs)
        broken.close()
        client.send(request(1, 5, 6))
        assert client.until_end(1)[1].error is None
        client.send(CallUtility(call_id=2, method="check_invariants"))
        answer = client.receive()
        assert isinstance(answer, UtilityResult)
        assert answer.result is True


def test_refused_request_gets_its_one_terminal_message(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (_, client):
        client.greet()
        client.send(request(1))
        tokens, end = client.until_end(1)
        assert tokens == []
        assert end.is_refused
        assert end.error is not None
        assert end.error.kind == "InvalidRequest"


def test_abort_is_answered_by_the_terminal_message(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (_, client):
        client.greet()
        client.send(request(1, 5, 6, max_tokens=190))
        client.send(AbortRequests(request_ids=[1, 77]))
        tokens, end = client.until_end(1)
        assert len(tokens) < 190
        assert end.error is None


@pytest.mark.parametrize(
    ("order", "cause"), [(EXITS, "exit code 3"), (FAILS, "the step went wrong"), (CONFUSED, "answered step")]
)
def test_executors_end_fails_every_request_with_its_cause(monkeypatch, order: int, cause: str):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        client.send(request(1, 5, 6, max_tokens=190))
        client.send(request(2, order))
        _, end = client.until_end(1)
        assert end.error is not None
        assert cause in end.error.message
        assert core.join() == 1
        while not isinstance(message := client.receive(), Goodbye):
            pass
        assert cause in message.error.message


def test_failed_start_reaches_those_who_wait_for_ready(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, seed=NO_MEMORY) as (core, client):
        client.send(Hello(protocol_version=PROTOCOL_VERSION))
        goodbye = client.receive()
        assert isinstance(goodbye, Goodbye)
        assert goodbye.error.kind == "MachineError"
        assert core.join() == 1


def test_ordered_stop_ends_running_requests_with_their_terminal_message(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        client.send(request(1, 5, 6, max_tokens=190))
        while not isinstance(message := client.receive(), StepOutputs) or not message.accepted:
            pass
        assert core.stop() == 0
        _, end = client.until_end(1)
        assert end.error is None or end.error.kind == "EngineDead"
        assert not Path(core.runtime_dir.client_address.removeprefix("ipc://")).exists()


def test_idle_client_hears_when_the_others_are_done(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        idle = Client(core)
        idle.greet()
        client.send(request(1, 5, 6))
        client.until_end(1)
        message = idle.receive()
        assert isinstance(message, StepOutputs)
        assert message.stats is not None
        assert (message.stats.num_running, message.stats.num_used_blocks) == (0, 0)
        idle.close()


def test_bug_in_the_core_is_told_to_those_who_wait(monkeypatch: pytest.MonkeyPatch):
    def fail(engine: Engine, now: float) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Engine, "schedule", fail)
    with running_core(monkeypatch) as (core, client):
        client.greet()
        client.send(request(1, 5, 6))
        _, end = client.until_end(1)
        assert end.error is not None
        assert "a bug" in end.error.message
        assert core.join() == 1
