"""Hosts that Ray places: a bundle of the cluster's resources for each executor, and in it an actor with its agent.

When one of them ends, all are placed anew: where a node was lost, nothing is known of what the others hold.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.curve import ClientKeys
from pagewire.ipc.errors import MachineError, StartError
from pagewire.ipc.hosts import AGENT_CRASH_EXIT_CODE, FromHost, HostSeat, PlacementPending

from .bundles import choose_bundle, describe_resources, seat_bundles
from .ray_actor import AgentOrder, HostActor

logger = logging.getLogger(__name__)

_PLACEMENT_POLL_S = 5.0
_CREATED = "CREATED"  # a placement group that has all its bundles

Handle = Any  # of Ray's, which has no annotations


class RayHosts:
    """Places as many agents as the engine has ranks, and again whenever one is lost.

    Args:
        config: of the engine.
        address: where the core listens for agents, as the nodes reach it.
        keys: for the core's door.
        tell: says something to the core.
    """

    def __init__(
        self, config: EngineConfig, address: str, keys: ClientKeys | None, tell: Callable[[FromHost], None]
    ) -> None:
        self._config = config
        self._address = address
        self._keys = keys
        self._tell = tell
        self._num_ranks = config.parallel.mesh.world_size

    def run(self) -> None:
        """Keep all agents running, until this process ends.

        Raises:
            MachineError: an agent has ended by itself: another one would do so as well.
        """
        while True:
            bundle = choose_bundle(self._config, ray.cluster_resources())
            group = self._place(bundle)
            try:
                self._run_agents(group, bundle)
            finally:
                remove_placement_group(group)

    def _place(self, bundle: dict[str, float]) -> Handle:
        """Wait for the resources; the core knows how long."""
        group = placement_group([bundle] * self._num_ranks, strategy="PACK")
        while not group.wait(timeout_seconds=_PLACEMENT_POLL_S):
            wanted = f"{self._num_ranks} x {describe_resources(bundle)}"
            reason = f"Ray has no room for {wanted}: free are {describe_resources(ray.available_resources())}"
            self._tell(PlacementPending(reason=reason))
        return group

    def _run_agents(self, group: Handle, bundle: dict[str, float]) -> None:
        """Start an agent in every bundle; return when one was lost."""
        nodes = placement_group_table(group)["bundles_to_node_id"]
        seats = seat_bundles(nodes, has_gpus="GPU" in bundle)
        actor_class = ray.remote(HostActor)
        actors = []
        runs = {}
        for number, seat in seats.items():
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
            actor = actor_class.options(
                num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0), scheduling_strategy=strategy
            ).remote()
            order = AgentOrder(address=self._address, config=self._config, seat=seat, keys=self._keys)
            actors.append(actor)  # an actor without a handle is ended
            runs[actor.run.remote(msgspec.msgpack.encode(order))] = seat
        logger.info("Ray has placed %d agents on %d nodes", len(seats), len(set(nodes.values())))
        (ended, *_), _ = ray.wait(list(runs), num_returns=1)
        _judge(ended, runs[ended])
        for actor in actors:
            ray.kill(actor)


def _judge(ended: Handle, seat: HostSeat) -> None:
    """Say what ended an agent.

    Raises:
        MachineError: it did so itself.
    """
    try:
        code = ray.get(ended)
    except ray.exceptions.RayTaskError as exc:
        if isinstance(exc.cause, StartError):
            raise MachineError(f"the agent of executor {seat.index} can't be started: {exc.cause.message}") from exc
        raise MachineError(f"the agent of executor {seat.index} can't be started: {exc.cause!r}") from exc
    except ray.exceptions.RayError as exc:
        logger.error("the agent of executor %d is lost: %s", seat.index, str(exc).partition("\n")[0])
        return
    if code >= 0 and code != AGENT_CRASH_EXIT_CODE:
        raise MachineError(f"the agent of executor {seat.index} ended with exit code {code}; its log says why.")
    logger.error("the agent of executor %d ended with exit code %d", seat.index, code)
