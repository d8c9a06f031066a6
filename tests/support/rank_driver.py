"""Executors that form one engine, without a core: as threads of this process, or as processes of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import zmq

from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.worker import Worker
from pagewire.ipc.channels import connect_executor
from pagewire.ipc.config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig
from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.mesh import Mesh
from pagewire.ipc.parallel_config import ParallelConfig
from pagewire.ipc.process import ChildProcess
from pagewire.ipc.requests import Message
from pagewire.ipc.steps import (
    ExecuteStep,
    ExecutorBusy,
    ExecutorReady,
    FromExecutor,
    LoadModel,
    RankPlacement,
    ScheduledRow,
    StepResult,
)

DEADLINE_S = 60.0


def config_of(checkpoint: Path, mesh: Mesh, **options: object) -> EngineConfig:
    """Return a configuration for tiny models on the reference kernels; `options` are those of the model."""
    model = {"model_path": str(checkpoint), "kernels": "reference", "dtype": "float32", "cpu_threads": 1, **options}
    return EngineConfig(
        model=ModelOptions(**model),  # type: ignore[arg-type]
        cache=CacheConfig(block_size=4, kv_cache_dtype="float16"),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
        parallel=ParallelConfig(tensor_parallel_size=mesh.tp, pipeline_parallel_size=mesh.pp),
    )


def load_messages(config: EngineConfig, rendezvous: Path, num_blocks: int | None = None) -> list[LoadModel]:
    """Return what each rank is told first."""
    num_ranks = config.parallel.mesh.world_size
    placements = [
        RankPlacement(rank=rank, index_on_host=rank, num_on_host=num_ranks, rendezvous=f"file://{rendezvous}")
        for rank in range(num_ranks)
    ]
    return [
        LoadModel(executor_epoch=1, config=config, num_blocks=num_blocks, placement=placement)
        for placement in placements
    ]


class Ranks(ABC):
    """All ranks; stands in for the `ModelRunner` of a `RunnerDriver`: tells earlier stages what was drawn."""

    def __init__(self) -> None:
        self._drawn: defaultdict[int, list[int]] = defaultdict(list)

    @abstractmethod
    def answers(self, message: Message) -> list[FromExecutor]:
        """Send a message to every rank; return what they say to it."""

    def execute(self, step: ExecuteStep) -> StepResult:
        """Take a step."""
        for row in step.new_rows:
            self._drawn.pop(row.row_id, None)
        rows = [self._with_drawn_tokens(row) for row in step.rows]
        (result,) = self.answers(msgspec.structs.replace(step, rows=rows))  # of the output rank alone
        assert isinstance(result, StepResult), result
        num_drafts = {row.row_id: len(row.draft_token_ids) for row in rows}
        for of_row in result.rows:
            self._drawn[of_row.row_id] += of_row.token_ids[: 1 + num_drafts[of_row.row_id]]
        return result

    def _with_drawn_tokens(self, row: ScheduledRow) -> ScheduledRow:
        return msgspec.structs.replace(row, drawn_token_ids=self._drawn.pop(row.row_id, []))


class RankThreads(Ranks):
    """Ranks as threads of this process, which find each other as processes do."""

    def __init__(self, messages: Sequence[LoadModel]) -> None:
        super().__init__()
        self.workers = [Worker(HostLimits()) for _ in messages]
        self._threads = ThreadPoolExecutor(len(messages))
        self.ready = [
            ready
            for ready in self._threads.map(lambda worker, load: worker.handle(load), self.workers, messages)
            if isinstance(ready, ExecutorReady)
        ]

    def answers(self, message: Message) -> list[FromExecutor]:
        replies = self._threads.map(lambda worker: worker.handle(message), self.workers)
        return [reply for reply in replies if reply is not None]

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()


class RankProcesses(Ranks):
    """Ranks as processes on ZeroMQ pairs."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        self._runtime_dir = RuntimeDir()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._output_rank = config.parallel.mesh.output_rank
        self.channels, self.processes = [], []
        for load in load_messages(config, self._runtime_dir.rendezvous_path(1, 1)):
            rank = load.placement.rank
            address = self._runtime_dir.executor_address(1, 1, rank)
            channel = connect_executor(self._context, address)
            channel.socket.setsockopt(zmq.RCVTIMEO, int(DEADLINE_S * 1000))
            process = ChildProcess(
                "pagewire.gpu_executor",
                name=f"executor {rank}",
                address=address,
                runtime_dir=self._runtime_dir.path,
                log_level="error",
            )
            channel.send(load)
            self.channels.append(channel)
            self.processes.append(process)
        self.ready = [self.next_answer(rank) for rank in range(len(self.channels))]

    def next_answer(self, rank: int) -> FromExecutor:
        """Return what a rank says next, signs of life apart."""
        while isinstance(message := self.channels[rank].recv(), ExecutorBusy):
            pass
        return message

    def answers(self, message: Message) -> list[FromExecutor]:
        for channel in self.channels:
            channel.send(message)
        return [self.next_answer(self._output_rank)]

    def close(self) -> None:
        """End what still runs."""
        for channel, process in zip(self.channels, self.processes, strict=True):
            if process.exit_code is None:
                process.kill()
            else:
                process.close()
            channel.close()
        self._context.term()
        self._runtime_dir.remove()
