"""What executors ask of Ray, and where each of them sits."""

from __future__ import annotations

import pytest

from pagewire.engine_core.hosts.bundles import choose_bundle, describe_resources, seat_bundles
from pagewire.ipc.config import EngineConfig, ModelOptions


@pytest.mark.parametrize(
    ("options", "resources", "bundle"),
    [
        (ModelOptions(), {"CPU": 8, "GPU": 2}, {"GPU": 1}),
        (ModelOptions(), {"CPU": 8}, {"CPU": 1}),
        (ModelOptions(cpu_threads=4), {"CPU": 8}, {"CPU": 4}),
        (ModelOptions(device="cpu", cpu_threads=2), {"CPU": 8, "GPU": 2}, {"CPU": 2}),
        (ModelOptions(device="cuda"), {"CPU": 8}, {"GPU": 1}),  # Ray waits for nodes that have some
    ],
)
def test_executor_gets_a_gpu_or_its_cpus(
    options: ModelOptions, resources: dict[str, float], bundle: dict[str, float]
) -> None:
    assert choose_bundle(EngineConfig(model=options), resources) == bundle


def test_ranks_of_one_node_are_neighbours_and_divide_its_cpus() -> None:
    seats = seat_bundles({0: "a", 1: "b", 2: "a"}, has_gpus=False)
    assert [(seats[number].index, seats[number].index_on_host, seats[number].num_on_host) for number in (0, 2, 1)] == [
        (0, 0, 2),
        (1, 1, 2),
        (2, 0, 1),
    ]
    assert {seat.num_hosts for seat in seats.values()} == {3}


def test_rank_with_a_gpu_of_its_own_sees_no_other() -> None:
    seats = seat_bundles({0: "a", 1: "a"}, has_gpus=True)
    assert [(seat.index, seat.index_on_host, seat.num_on_host) for seat in seats.values()] == [(0, 0, 1), (1, 0, 1)]


def test_resources_are_told_as_far_as_executors_use_them() -> None:
    assert describe_resources({"GPU": 2.0, "CPU": 0.5, "memory": 1e9}) == "0.5 CPU, 2 GPU"
    assert describe_resources({"memory": 1e9}) == "none"
