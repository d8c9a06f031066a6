from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pagewire.gpu_executor.host_agent.host_facts import address_towards, count_cpus, count_gpus, find_free_port
from pagewire.ipc.errors import MachineError


def test_gpus_are_those_that_the_system_lists(tmp_path: Path) -> None:
    nvidia, render = tmp_path / "nvidia", tmp_path / "drm"
    assert count_gpus(nvidia, render) == 0
    (nvidia / "0000:01:00.0").mkdir(parents=True)
    for number, vendor in ((128, "0x1002"), (129, "0x8086")):
        (render / f"renderD{number}" / "device").mkdir(parents=True)
        (render / f"renderD{number}" / "device" / "vendor").write_text(vendor + "\n")
    assert count_gpus(nvidia, render) == 2


def test_free_port_can_be_bound() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", find_free_port()))
    assert count_cpus() >= 1


def test_address_is_the_one_by_which_the_core_is_reached() -> None:
    assert address_towards("tcp://127.0.0.1:29501") == "127.0.0.1"
    with pytest.raises(MachineError, match=r"can't be reached"):
        address_towards("tcp://no-such-host.invalid:29501")
