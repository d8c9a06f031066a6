from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from pagewire.engine_core.executors.placer import LocalPlacer, PlacedRank
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.parallel_config import ParallelConfig
from tests.support.children import make_importable


@contextmanager
def placed(
    runtime_dir: RuntimeDir, parallel: ParallelConfig, epoch: int
) -> Iterator[tuple[LocalPlacer, list[PlacedRank]]]:
    context = zmq.Context[zmq.Socket[bytes]]()
    placer = LocalPlacer(
        context, runtime_dir, EngineConfig(parallel=parallel), core_epoch=2, module="tests.support.idle_child"
    )
    ranks = placer.place(epoch)
    try:
        yield placer, ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.channel.close()
        context.term()


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[RuntimeDir]:
    make_importable(monkeypatch)
    runtime_dir = RuntimeDir()
    yield runtime_dir
    runtime_dir.remove()


def test_lone_rank_has_nobody_to_meet(runtime_dir: RuntimeDir):
    with placed(runtime_dir, ParallelConfig(), epoch=1) as (_, (rank,)):
        assert (rank.placement.rank, rank.placement.num_on_host, rank.placement.rendezvous) == (0, 1, "")
        assert rank.process.name == "executor 0"


def test_ranks_share_the_host_and_meet_in_a_file_of_their_epoch_that_is_removed(runtime_dir: RuntimeDir):
    parallel = ParallelConfig(tensor_parallel_size=2)
    with placed(runtime_dir, parallel, epoch=3) as (placer, ranks):
        assert [rank.placement.rank for rank in ranks] == [0, 1]
        assert [rank.placement.index_on_host for rank in ranks] == [0, 1]
        assert {rank.placement.num_on_host for rank in ranks} == {2}
        meeting = runtime_dir.rendezvous_path(core_epoch=2, epoch=3)
        assert {rank.placement.rendezvous for rank in ranks} == {f"file://{meeting}"}
        meeting.touch()
        placer.clear(3)
        placer.clear(3)
        assert not meeting.exists()
