"""An `EngineCore` with its real sockets on a thread, a fake executor's process under it, and bare clients of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import pytest
import zmq

from pagewire.engine_core.loop import EngineCore
from pagewire.ipc.cluster_keys import ClusterKeys
from pagewire.ipc.codec import PROTOCOL_VERSION, core_messages, encode
from pagewire.ipc.config import EngineConfig, ModelOptions, SchedulerConfig, SupervisionConfig
from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.outputs import CoreMessage, Ready, RequestEnd, StepOutputs, StepStats
from pagewire.ipc.parallel_config import ParallelConfig
from pagewire.ipc.process import ChildProcess
from pagewire.ipc.requests import AddRequest, GenerateTask, Hello, Message, TokenInputs
from pagewire.ipc.sampling_params import Sampling
from tests.support.children import make_importable
from tests.support.fake_executor import solo_answers
from tests.support.fake_executor_process import VOCAB_SIZE
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


@dataclass(frozen=True)
class ClusterHosts:
    """An engine's hosts: this machine, that many times.

    Attributes:
        num_hosts: the core's among them.
        port: where agents find the core.
        keys: of them all.
    """

    num_hosts: int
    port: int
    keys: ClusterKeys


class RunningCore:
    """An `EngineCore` on a thread of this process."""

    def __init__(self, config: EngineConfig, core_epoch: int, cluster_keys: ClusterKeys | None = None) -> None:
        self.runtime_dir = RuntimeDir()
        self.watch = PipeWatch()
        core = self.core = EngineCore(
            config,
            address=self.runtime_dir.client_address,
            runtime_dir=self.runtime_dir,
            watch=self.watch,
            core_epoch=core_epoch,
            executor_module="tests.support.fake_executor_process",
            cluster_keys=cluster_keys,
        )
        self.exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, args=(core,))
        self._thread.start()

    def _run(self, core: EngineCore) -> None:
        self.exit_code = core.run()

    @property
    def executor_pid(self) -> int:
        """Of the one executor that serves now."""
        (pid,) = self.executor_pids
        return pid

    @property
    def executor_pids(self) -> list[int]:
        """Of the executors that serve now, by rank."""
        group = self.core._executors._group
        assert group is not None
        processes = [rank.process for rank in group._ranks.values()]
        assert all(isinstance(process, ChildProcess) for process in processes)
        return [process.pid for process in processes if isinstance(process, ChildProcess)]

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
    tp: int = 1,
    pp: int = 1,
    hosts: ClusterHosts | None = None,
) -> Iterator[tuple[RunningCore, Client]]:
    make_importable(monkeypatch)
    config = core_config(seed=seed, max_restarts=max_restarts, stall_limit=stall_limit, tp=tp, pp=pp, hosts=hosts)
    core = RunningCore(config, core_epoch, None if hosts is None else hosts.keys)
    client = Client(core)
    try:
        yield core, client
    finally:
        client.close()
        if core.exit_code is None and core._thread.is_alive():
            core.stop()
        core.watch.close()
        core.runtime_dir.remove()


def core_config(
    *,
    seed: int | None = None,
    max_restarts: int = 5,
    stall_limit: float = 20.0,
    tp: int = 1,
    pp: int = 1,
    hosts: ClusterHosts | None = None,
) -> EngineConfig:
    parallel = ParallelConfig(tensor_parallel_size=tp, pipeline_parallel_size=pp)
    if hosts is not None:
        parallel = msgspec.structs.replace(parallel, nnodes=hosts.num_hosts, master_port=hosts.port)
    return EngineConfig(
        model=ModelOptions(model="tiny", model_path=str(tiny_checkpoint()), max_model_len=MAX_MODEL_LEN, seed=seed),
        scheduler=SchedulerConfig(max_num_seqs=8),
        parallel=parallel,
        supervision=SupervisionConfig(max_restarts=max_restarts, stall_limit=stall_limit),
    )


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
