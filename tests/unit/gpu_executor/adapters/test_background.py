"""Adapters are read by a thread of their own, and put where steps find them by the thread of the steps."""

from __future__ import annotations

import select
import threading
from pathlib import Path

from pagewire.gpu_executor.adapters.background import AdapterLoads
from pagewire.gpu_executor.adapters.reading import AdapterReader, ReadAdapter
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.ipc.adapters import Adapter
from pagewire.ipc.steps import AdapterLoaded, LoadAdapter
from tests.support.adapted_model import AdaptedModel
from tests.support.tiny_model import tiny_checkpoint
from tools.tiny_model.lora_writer import write_adapter
from tools.tiny_model.spec import TinyModelSpec

DEADLINE_S = 60


def order(load_id: int, path: Path, digest: str = "") -> LoadAdapter:
    return LoadAdapter(
        executor_epoch=3, adapter=Adapter(name=f"a{load_id}", load_id=load_id, path=str(path), digest=digest)
    )


def answers(loads: AdapterLoads, count: int) -> list[AdapterLoaded]:
    """Wait for the answers of so many loads."""
    taken: list[AdapterLoaded] = []
    while len(taken) < count:
        assert select.select([loads.fd], [], [], DEADLINE_S)[0], "no load ends"
        taken += loads.take()
    return taken


def test_loads_end_in_turn_and_bad_ones_change_nothing(tmp_path: Path) -> None:
    model = AdaptedModel(tiny_checkpoint(), select_ops("reference"))
    write_adapter(TinyModelSpec(), tmp_path / "good")
    loads = AdapterLoads(model.store)
    for number, name in enumerate(("good", "none", "good"), 1):
        loads.begin(order(number, tmp_path / name))
    first, second, third = answers(loads, 3)
    assert [answer.load_id for answer in (first, second, third)] == [1, 2, 3]
    assert first == AdapterLoaded(executor_epoch=3, load_id=1, digest=third.digest)
    assert second.error is not None
    assert "adapter_config.json" in second.error.message
    assert (1 in model.store, 2 in model.store, 3 in model.store) == (True, False, True)
    assert loads.take() == []


def test_steps_find_nothing_before_it_is_taken(tmp_path: Path, monkeypatch) -> None:
    model = AdaptedModel(tiny_checkpoint(), select_ops("reference"))
    write_adapter(TinyModelSpec(), tmp_path)
    may_read, threads = threading.Event(), []
    read = AdapterReader.read

    def hold(self: AdapterReader, directory: Path) -> ReadAdapter:
        threads.append(threading.current_thread())
        assert may_read.wait(DEADLINE_S)
        return read(self, directory)

    monkeypatch.setattr(AdapterReader, "read", hold)
    loads = AdapterLoads(model.store)
    loads.begin(order(1, tmp_path))
    assert loads.take() == []
    may_read.set()
    assert select.select([loads.fd], [], [], DEADLINE_S)[0]
    assert 1 not in model.store
    assert [answer.error for answer in loads.take()] == [None]
    assert 1 in model.store
    assert threads != [threading.current_thread()]
