"""The core's poll loop over real sockets and a real (fake) executor process: greetings, answers, deaths, stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
import zmq

from pagewire.engine_core.engine import Engine
from pagewire.engine_core.loop import EngineCore
from pagewire.ipc.codec import PROTOCOL_VERSION, core_messages, encode
from pagewire.ipc.config import EngineConfig, ModelOptions, SchedulerConfig, SupervisionConfig
from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.outputs import CoreMessage, Goodbye, Ready, RequestEnd, StepOutputs, StepStats, UtilityResult
from pagewire.ipc.requests import (
    AbortRequests,
    AddRequest,
    CallUtility,
    GenerateTask,
    Hello,
    Message,
    Ping,
    TokenInputs,
)
from pagewire.ipc.sampling_params import Sampling
from tests.support.children import is_alive, make_importable
from tests.support.fake_executor import solo_answers
from tests.support.fake_executor_process import (
    CONFUSED,
    EXITS,
    EXITS_ONCE,
    FAILS,
    HANGS_LATER,
    HANGS_ONCE,
    NO_MEMORY,
    NO_MEMORY_LATER,
    VOCAB_SIZE,
)
from tests.support.tiny_model import tiny_checkpoint

WAIT_MS = 20_000
MAX_MODEL_LEN = 200


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

    def __init__(self, config: EngineConfig, core_epoch: int) -> None:
        self.runtime_dir = RuntimeDir()
        self.watch = PipeWatch()
        core = self.core = EngineCore(
            config,
            address=self.runtime_dir.client_address,
            runtime_dir=self.runtime_dir,
            watch=self.watch,
            core_epoch=core_epoch,
            executor_module="tests.support.fake_executor_process",
        )
        self.exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, args=(core,))
        self._thread.start()

    def _run(self, core: EngineCore) -> None:
        self.exit_code = core.run()

    @property
    def executor_pid(self) -> int:
        """Of the executor that serves now."""
        (process,) = self.core._executors._group._processes
        return process.pid

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

    def has_message(self) -> bool:
        return bool(self._socket.poll(200))

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
def running_core(
    monkeypatch: pytest.MonkeyPatch,
    *,
    seed: int | None = None,
    max_restarts: int = 5,
    stall_limit: float = 20.0,
    core_epoch: int = 1,
) -> Iterator[tuple[RunningCore, Client]]:
    make_importable(monkeypatch)
    config = EngineConfig(
        model=ModelOptions(model="tiny", model_path=str(tiny_checkpoint()), max_model_len=MAX_MODEL_LEN, seed=seed),
        scheduler=SchedulerConfig(max_num_seqs=8),
        supervision=SupervisionConfig(max_restarts=max_restarts, stall_limit=stall_limit),
    )
    core = RunningCore(config, core_epoch)
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
    ("first", "kind"),
    [
        # They may have been given up long ago, and attach anew.
        (request(1, 5), "ClientGivenUp"),
        (CallUtility(call_id=1, method="stats"), "ClientGivenUp"),
        (Hello(protocol_version=999), "ProtocolError"),
        (b"\xff no message", "ProtocolError"),
    ],
)
def test_who_does_not_greet_rightly_is_sent_away_and_the_core_goes_on(monkeypatch, first: Message | bytes, kind: str):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        stranger = Client(core)
        stranger.send(first)
        goodbye = stranger.receive()
        assert isinstance(goodbye, Goodbye)
        assert goodbye.error.kind == kind
        stranger.close()
        client.send(request(1, 5, 6))
        assert client.until_end(1)[1].error is None


def test_who_greets_again_starts_anew_and_reads_nothing_of_what_was_asked_before(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (_, client):
        client.greet()
        client.send(request(1, 9, 9, max_tokens=190))
        client.send(Hello(protocol_version=PROTOCOL_VERSION, client_name="another of the same id"))
        while not isinstance(message := client.receive(), Ready):
            assert isinstance(message, StepOutputs)
        client.send(request(2, 5, 6))
        while True:
            message = client.receive()
            if isinstance(message, StepOutputs):
                assert {delta.request_id for delta in message.deltas} <= {2}
                assert 1 not in {end.request_id for end in message.ends}
                if message.ends:
                    break
        client.send(CallUtility(call_id=3, method="check_invariants"))
        answer = client.receive()
        assert isinstance(answer, UtilityResult)
        assert answer.result is True


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


def solo_tokens(message: AddRequest) -> list[int]:
    """What the request is answered if nothing happens."""
    (answer,) = solo_answers(message, max_model_len=MAX_MODEL_LEN, vocab_size=VOCAB_SIZE)
    return answer.token_ids


def until_serving(client: Client, is_serving: bool) -> StepStats:
    """The first figures that say whether there is an executor."""
    while True:
        message = client.receive()
        stats = message.stats if isinstance(message, StepOutputs) else None
        if stats is not None and stats.is_serving is is_serving:
            return stats


@pytest.mark.parametrize(
    ("order", "cause"), [(EXITS, "exit code 3"), (FAILS, "the step went wrong"), (CONFUSED, "answered step")]
)
def test_request_that_ends_executors_fails_alone_with_the_cause(monkeypatch, order: int, cause: str):
    with running_core(monkeypatch) as (_, client):
        client.greet()
        other = request(1, 5, 6, max_tokens=30)
        client.send(other)
        client.send(request(2, order))
        tokens, end = client.until_end(2)
        assert tokens == []
        assert end.error is not None
        assert end.error.kind == "PoisonRequest"
        assert cause in end.error.message
        client.send(CallUtility(call_id=1, method="check_invariants"))
        client.send(request(3, 7, 8))
        assert client.until_end(3)[1].error is None


@pytest.mark.parametrize("order", [EXITS_ONCE, HANGS_ONCE])
def test_streams_go_on_after_an_executors_end_with_the_tokens_that_were_theirs(monkeypatch, order: int):
    with running_core(monkeypatch, stall_limit=1.0) as (_, client):
        client.greet()
        first, second = request(1, 5, 6, max_tokens=150), request(2, order, max_tokens=3)
        client.send(first)
        client.send(second)
        stats = until_serving(client, False)
        assert (stats.num_running, stats.num_used_blocks, stats.num_executor_restarts) == (0, 0, 1)
        collected: dict[int, list[int]] = {}
        ends: dict[int, RequestEnd] = {}
        while len(ends) < 2:
            message = client.receive()
            if isinstance(message, StepOutputs):
                for delta in message.deltas:
                    collected.setdefault(delta.request_id, []).extend(delta.token_ids)
                ends |= {end.request_id: end for end in message.ends}
        assert not any(end.error for end in ends.values())
        assert collected[2] == solo_tokens(second)
        expected = solo_tokens(first)
        assert collected[1] == expected[-len(collected[1]) :]


def test_stopped_executor_is_found_at_the_stall_limit_and_replaced(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, stall_limit=1.0) as (core, client):
        client.greet()
        stopped = core.executor_pid
        os.kill(stopped, signal.SIGSTOP)
        message = request(1, 5, 6)
        client.send(message)
        assert client.until_end(1)[0] == solo_tokens(message)
        assert not is_alive(stopped)
        assert core.executor_pid != stopped


def test_request_is_late_in_time_though_the_executor_hangs(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, stall_limit=20.0) as (_, client):
        client.greet()
        client.send(msgspec.structs.replace(request(1, HANGS_ONCE), timeout_s=0.05))
        client.send(request(2, 5))
        tokens, end = client.until_end(1)
        assert tokens == []
        assert end.error is not None
        assert end.error.kind == "DeadlineExceeded"
        client.send(CallUtility(call_id=1, method="block_tables"))
        while not isinstance(message := client.receive(), UtilityResult):
            pass
        assert {table["request_id"] for table in message.result} == {2}


def test_drained_core_finishes_what_it_has_and_refuses_new_requests(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (_, client):
        client.greet()
        client.send(request(1, 5, max_tokens=190))
        client.send(CallUtility(call_id=1, method="drain"))
        client.send(request(2, 6))
        ends: dict[int, RequestEnd] = {}
        while len(ends) < 2:
            message = client.receive()
            if isinstance(message, StepOutputs):
                ends |= {end.request_id: end for end in message.ends}
        assert ends[1].error is None
        assert ends[2].is_refused
        assert ends[2].error is not None
        assert ends[2].error.kind == "Overloaded"


def test_executor_that_dies_idle_is_replaced_and_all_clients_hear_of_it(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        os.kill(core.executor_pid, signal.SIGKILL)
        assert until_serving(client, False).num_executor_restarts == 1
        late = Client(core)
        late.greet()
        assert until_serving(client, True).num_executor_restarts == 1
        late.send(request(1, 5, 6))
        assert late.until_end(1)[1].error is None
        late.close()
        assert {path.name for path in core.runtime_dir.path.iterdir()} == {"core.sock", "executor-1-2-0.sock"}


def test_clients_are_pinged_while_an_executor_loads(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, seed=HANGS_LATER, stall_limit=1.5) as (core, client):
        client.greet()
        client.send(request(1, 5, 6, max_tokens=190))
        while not isinstance(message := client.receive(), StepOutputs) or not message.deltas:
            pass
        os.kill(core.executor_pid, signal.SIGKILL)
        until_serving(client, False)
        assert isinstance(client.receive(), Ping)
        assert isinstance(client.receive(), Ping)
        assert until_serving(client, True).num_executor_restarts == 2, "the one that hung was replaced too"
        assert client.until_end(1)[1].error is None


def test_requests_that_end_executors_do_not_add_up(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, max_restarts=4) as (_, client):
        client.greet()
        client.send(request(1, EXITS))
        client.send(request(2, EXITS))
        for request_id in (1, 2):
            _, end = client.until_end(request_id)
            assert end.error is not None
            assert end.error.kind == "PoisonRequest"
        client.send(request(3, 5, 6))
        assert client.until_end(3)[1].error is None


def test_answers_that_make_no_sense_are_no_progress(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, max_restarts=2) as (core, client):
        client.greet()
        client.send(request(1, CONFUSED))
        _, end = client.until_end(1)
        assert end.error is not None
        assert "--max-restarts 2" in end.error.message
        assert core.join() == 1


def test_restart_budget_ends_with_the_cause_for_everybody(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, max_restarts=1) as (core, client):
        client.greet()
        client.send(request(1, EXITS))
        _, end = client.until_end(1)
        assert end.error is not None
        assert "--max-restarts 1" in end.error.message
        assert "exit code 3" in end.error.message
        assert core.join() == 1
        while not isinstance(message := client.receive(), Goodbye):
            pass
        assert message.error == end.error


@pytest.mark.parametrize(("seed", "core_epoch"), [(NO_MEMORY_LATER, 1), (NO_MEMORY, 2)])
def test_two_failed_starts_in_a_row_are_the_end(monkeypatch, seed: int, core_epoch: int):
    with running_core(monkeypatch, seed=seed, core_epoch=core_epoch) as (core, client):
        client.send(Hello(protocol_version=PROTOCOL_VERSION))
        if core_epoch == 1:
            assert isinstance(client.receive(), Ready)
            os.kill(core.executor_pid, signal.SIGKILL)
        while not isinstance(message := client.receive(), Goodbye):
            pass
        assert "2 starts of the executor in a row" in message.error.message
        assert "no memory left" in message.error.message
        assert core.join() == 1


def test_executor_killed_while_a_later_core_starts_costs_it_nothing(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, core_epoch=2) as (core, client):
        os.kill(core.executor_pid, signal.SIGKILL)
        assert client.greet().core_epoch == 2
        client.send(request(1, 5, 6))
        assert client.until_end(1)[1].error is None


def test_ping_of_an_idle_client_is_answered_before_ready_as_well(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, core_epoch=2) as (core, client):
        os.kill(core.executor_pid, signal.SIGSTOP)
        client.send(Hello(protocol_version=PROTOCOL_VERSION))
        client.send(Ping())
        assert isinstance(client.receive(), Ping)
        os.kill(core.executor_pid, signal.SIGCONT)
        assert isinstance(client.receive(), Ready)
        client.send(Ping())
        assert isinstance(client.receive(), Ping)


def test_stopped_executors_do_not_outlive_the_parent_of_their_core(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        stopped = core.executor_pid
        os.kill(stopped, signal.SIGSTOP)
        core.watch.parent_is_dead = True
        core.stop()
        assert not is_alive(stopped)
        assert not core.runtime_dir.path.exists()


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


def test_crash_of_the_core_says_nothing_and_leaves_no_executor(monkeypatch: pytest.MonkeyPatch):
    def fail(engine: Engine, now: float) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Engine, "schedule", fail)
    with running_core(monkeypatch) as (core, client):
        client.greet()
        executor = core.executor_pid
        client.send(request(1, 5, 6))
        assert core.join() == 70
        assert not is_alive(executor)
        while client.has_message():
            message = client.receive()
            assert isinstance(message, Ping) or (isinstance(message, StepOutputs) and not message.ends)
