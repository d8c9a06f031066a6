"""What the core holds of an executor on another host: orders go to its agent, the end comes from there."""

from __future__ import annotations

import select
import threading

from pagewire.engine_core.hosts.remote_process import RemoteProcess
from pagewire.ipc.hosts import KillRank, StopRank


def is_noticed(process: RemoteProcess) -> bool:
    return bool(select.select([process.death_fd], [], [], 0)[0])


def test_orders_go_to_the_agent_and_the_end_is_noticed() -> None:
    orders: list[StopRank | KillRank] = []
    process = RemoteProcess("executor 3 on b", 2, 3, orders.append)
    process.ask_to_stop()
    process.begin_kill()
    assert orders == [StopRank(executor_epoch=2, rank=3), KillRank(executor_epoch=2, rank=3)]
    assert not is_noticed(process)
    assert process.exit_code is None
    process.note_end(0)
    assert is_noticed(process)
    process.note_loss("host 1 (b)")  # too late: it had ended before
    assert process.describe_end() == "ended with exit code 0"
    process.begin_kill()
    assert len(orders) == 2  # one that has ended is left alone
    process.close()
    process.close()


def test_kill_waits_for_the_agents_word() -> None:
    process = RemoteProcess(
        "executor 1 on b", 1, 1, lambda order: threading.Thread(target=process.note_end, args=(-9,)).start()
    )
    process.kill()
    assert process.exit_code == -9


def test_end_after_the_core_has_let_go_touches_no_descriptor() -> None:
    process = RemoteProcess("executor 1 on b", 1, 1, lambda order: None)
    process.close()
    process.note_end(1)
    assert process.exit_code == 1
