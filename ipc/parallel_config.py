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
    master_port: Annotated[int, Meta(description="Port there, and the first of those that ranks meet at.")] = 29501
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
        self._refuse_unfinished()

    @property
    def mesh(self) -> Mesh:
        """The ranks of one engine."""
        return Mesh(pp=self.pipeline_parallel_size, tp=self.tensor_parallel_size)

    def _refuse_unfinished(self) -> None:
        for flag, is_given in (
            ("--distributed-executor-backend ray", self.distributed_executor_backend == "ray"),
            ("--nnodes", self.nnodes != 1),
        ):
            if is_given:
                raise ConfigError(f"{flag} is not supported yet; leave it out.")
