"""How models are spread over devices, processes and machines."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .errors import ConfigError
from .mesh import Mesh

ExecutorBackend = Literal["mp", "ray"]


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one model is spread over devices.

    Whether it can be divided so is checked where its shapes are known (`checkpoint.placement`).
    """

    tensor_parallel_size: Annotated[int, Meta(description="Devices that share each layer.")] = 1
    pipeline_parallel_size: Annotated[int, Meta(description="Groups of layers, one after the other.")] = 1
    data_parallel_size: Annotated[
        int, Meta(description="Engines with the whole model each, among which one server divides its requests.")
    ] = 1
    enable_expert_parallel: Annotated[
        bool,
        Meta(description="Tensor-parallel ranks hold whole experts of a mixture, instead of a part of each."),
    ] = False
    distributed_executor_backend: Annotated[
        ExecutorBackend,
        Meta(description="Who places executors. mp: processes on this host (and on --nnodes); ray: a Ray cluster."),
    ] = "mp"
    nnodes: Annotated[int, Meta(description="Hosts that the executors are spread over.")] = 1
    node_rank: Annotated[int, Meta(description="Which of them this host is; 0 serves.")] = 0
    master_addr: Annotated[str, Meta(description="Address of host 0 that the other hosts reach.")] = "127.0.0.1"
    master_port: Annotated[int, Meta(description="Port there to which the other hosts come.")] = 29501
    cluster_key_file: Annotated[
        str | None,
        Meta(
            description="File of the secret that all hosts of --nnodes share, instead of the environment variable "
            "PAGEWIRE_CLUSTER_KEY."
        ),
    ] = None
    insecure_cluster: Annotated[
        bool, Meta(description="Hosts of --nnodes take each other's word: for a network that holds nobody else.")
    ] = False
    data_parallel_rank: int = 0  # of an engine among those of one server; set by who starts it, not a flag

    def __post_init__(self) -> None:
        for flag, size in (
            ("--tensor-parallel-size", self.tensor_parallel_size),
            ("--pipeline-parallel-size", self.pipeline_parallel_size),
            ("--data-parallel-size", self.data_parallel_size),
            ("--nnodes", self.nnodes),
        ):
            if size < 1:
                raise ConfigError(f"{flag} {size} must be at least 1.")
        if not 0 <= self.node_rank < self.nnodes:
            raise ConfigError(f"--node-rank {self.node_rank} must be from 0 to {self.nnodes - 1} (--nnodes less 1).")
        if not 0 < self.master_port < 65536:
            raise ConfigError(f"--master-port {self.master_port} must be from 1 to 65535.")
        if self.enable_expert_parallel and self.tensor_parallel_size == 1:
            raise ConfigError(
                "--enable-expert-parallel divides experts between the ranks of --tensor-parallel-size, which is 1: "
                "raise it, or leave the flag out."
            )
        self._check_hosts()

    @property
    def mesh(self) -> Mesh:
        """The ranks of one engine."""
        return Mesh(pp=self.pipeline_parallel_size, tp=self.tensor_parallel_size)

    @property
    def is_on_other_hosts(self) -> bool:
        """Whether executors may run on other hosts than the core."""
        return self.nnodes > 1 or self.distributed_executor_backend == "ray"

    def _check_hosts(self) -> None:
        if self.nnodes == 1:
            for flag, is_given in (
                ("--cluster-key-file", self.cluster_key_file is not None),
                ("--insecure-cluster", self.insecure_cluster),
            ):
                if is_given:
                    raise ConfigError(
                        f"{flag} is about the hosts of --nnodes, which is 1: raise it, or leave {flag} out."
                    )
            return
        if self.distributed_executor_backend == "ray":
            raise ConfigError(
                "--nnodes is for hosts that are started one by one, and --distributed-executor-backend ray finds them "
                "itself: leave one of them out."
            )
        if self.data_parallel_size > 1:
            raise ConfigError(
                f"--data-parallel-size {self.data_parallel_size} has all its engines on one host, and --nnodes "
                f"{self.nnodes} spreads one engine over several: leave one of them out."
            )
        if self.cluster_key_file is not None and self.insecure_cluster:
            raise ConfigError("--cluster-key-file and --insecure-cluster contradict each other; leave one of them out.")
        num_ranks = self.mesh.world_size
        if num_ranks % self.nnodes:
            raise ConfigError(
                f"--nnodes {self.nnodes} must divide the {num_ranks} ranks of --tensor-parallel-size "
                f"{self.tensor_parallel_size} x --pipeline-parallel-size {self.pipeline_parallel_size}: each "
                "host takes as many."
            )
