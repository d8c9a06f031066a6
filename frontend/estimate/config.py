"""The flags of `pagewire estimate`."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pagewire.checkpoint.estimate.speed import EXPECTED_SHARE
from pagewire.ipc.config import GPU_STEP_LIMITS
from pagewire.ipc.errors import ConfigError

_Positive = Annotated[int, Meta(ge=1)]


class EstimateConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be served, and on what."""

    gpu: Annotated[
        str | None, Meta(description="Device, like h200, h100, a100, l40s, mi300x. Default: compare common ones.")
    ] = None
    tensor_parallel_size: Annotated[_Positive, Meta(description="Devices that share each layer.")] = 1
    pipeline_parallel_size: Annotated[_Positive, Meta(description="Groups of layers, one after the other.")] = 1
    link_bandwidth: Annotated[
        float | None, Meta(description="GB/s that a device receives within its machine. Default: its data sheet's.")
    ] = None
    link_delay: Annotated[
        float | None, Meta(description="Microseconds that any exchange there takes besides. Default: 8.")
    ] = None
    machine_bandwidth: Annotated[
        float | None, Meta(description="GB/s that a device receives from another machine. Default: 50.")
    ] = None
    machine_delay: Annotated[
        float | None, Meta(description="Microseconds that any exchange between machines takes besides. Default: 20.")
    ] = None
    weights: Annotated[
        Literal["auto", "bfloat16", "float16", "fp8", "int8", "int4"],
        Meta(description="Format of the weights. auto: the checkpoint's."),
    ] = "auto"
    kv_cache_dtype: Annotated[
        Literal["auto", "float16", "bfloat16", "fp8"],
        Meta(description="Type of cached keys and values. auto: 16 bits."),
    ] = "auto"
    context_len: Annotated[
        int | None,
        Meta(description="Tokens of a request, prompt and output together. Default: 4096, or the model's longest."),
    ] = None
    output_len: Annotated[int | None, Meta(description="Of those, the output's. Default: 256, or half of them.")] = None
    num_requests: Annotated[int | None, Meta(description="Requests at once. Default: as many as fit and may run.")] = (
        None
    )
    gpu_memory_utilization: Annotated[
        float, Meta(description="Share of a device's memory for weights, work and KV.")
    ] = 0.9
    max_num_seqs: Annotated[_Positive, Meta(description="Most requests that run at once.")] = (
        GPU_STEP_LIMITS.max_num_seqs
    )
    max_num_batched_tokens: Annotated[_Positive, Meta(description="Token budget of a step.")] = (
        GPU_STEP_LIMITS.max_num_batched_tokens
    )
    efficiency: Annotated[float, Meta(description="Share of the limit that is expected, above 0 and at most 1.")] = (
        EXPECTED_SHARE
    )
    revision: Annotated[str | None, Meta(description="Branch, tag or commit of a hub model.")] = None
    json: Annotated[bool, Meta(description="Print JSON instead of text.")] = False

    def __post_init__(self) -> None:
        for flag, value, least in (
            ("--context-len", self.context_len, 2),
            ("--output-len", self.output_len, 1),
            ("--num-requests", self.num_requests, 1),
        ):
            if value is not None and value < least:
                raise ConfigError(f"{flag} {value} must be at least {least}.")
        for flag, share in (
            ("--gpu-memory-utilization", self.gpu_memory_utilization),
            ("--efficiency", self.efficiency),
        ):
            if not 0 < share <= 1:
                raise ConfigError(f"{flag} {share:g} must be above 0 and at most 1 (a fraction).")
        self._check_links()
        if self.gpu is None and (self.tensor_parallel_size, self.pipeline_parallel_size) != (1, 1):
            raise ConfigError("--tensor-parallel-size and --pipeline-parallel-size need --gpu: of which device?")

    def _check_links(self) -> None:
        for flag, number, least in (
            ("--link-bandwidth", self.link_bandwidth, "above"),
            ("--machine-bandwidth", self.machine_bandwidth, "above"),
            ("--link-delay", self.link_delay, "at least"),
            ("--machine-delay", self.machine_delay, "at least"),
        ):
            if number is None:
                continue
            if self.gpu is None:
                raise ConfigError(f"{flag} needs --gpu: the link of which device?")
            if not 0 <= number < math.inf or (least == "above" and number == 0):
                raise ConfigError(f"{flag} {number:g} must be {least} 0.")
