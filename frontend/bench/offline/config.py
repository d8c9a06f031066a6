"""What the benchmarks without a server can be told: names and defaults are those of vLLM's commands.

Flags are made from these fields, as in `pagewire.ipc.config`. The engine's own flags come besides.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pagewire.ipc.errors import ConfigError

from ..dataset.config import DatasetConfig

_Count = Annotated[int, Meta(ge=0)]
_Positive = Annotated[int, Meta(ge=1)]


class BenchThroughputConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Throughput of an engine with all requests at once."""

    dataset: DatasetConfig = DatasetConfig()
    input_len: Annotated[int | None, Meta(description="The same as --random-input-len.")] = None
    output_len: Annotated[int | None, Meta(description="The same as --random-output-len.")] = None
    temperature: Annotated[float, Meta(description="Of each request; 0 is greedy, so that runs repeat.")] = 0.0
    output_json: Annotated[str | None, Meta(description="File to write the figures to.")] = None
    disable_tqdm: Annotated[bool, Meta(description="No progress bar.")] = False

    def __post_init__(self) -> None:
        for flag, value in (("--input-len", self.input_len), ("--output-len", self.output_len)):
            if value is not None and value < 1:
                raise ConfigError(f"{flag} {value} must be at least 1.")
            if value is not None and self.dataset.dataset_name != "random":
                raise ConfigError(f"{flag} is for --dataset-name random; {self.dataset.dataset_name} has its own.")
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"--temperature {self.temperature:g} must be at least 0.")

    @property
    def requests(self) -> DatasetConfig:
        """The dataset with the lengths that were asked for."""
        return msgspec.structs.replace(
            self.dataset,
            random_input_len=self.input_len or self.dataset.random_input_len,
            random_output_len=self.output_len or self.dataset.random_output_len,
        )


class BenchLatencyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Latency of one batch of requests."""

    input_len: Annotated[_Positive, Meta(description="Prompt tokens of a request, by chance.")] = 32
    output_len: Annotated[_Positive, Meta(description="Output tokens of a request.")] = 128
    batch_size: Annotated[_Positive, Meta(description="Requests at once.")] = 8
    num_iters_warmup: Annotated[_Count, Meta(description="Batches before, which are not measured.")] = 10
    num_iters: Annotated[_Positive, Meta(description="Batches to measure, one after the other.")] = 30
    temperature: Annotated[float, Meta(description="Of each request; 0 is greedy, so that runs repeat.")] = 0.0
    output_json: Annotated[str | None, Meta(description="File to write the figures to.")] = None
    disable_tqdm: Annotated[bool, Meta(description="No progress bar.")] = False

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"--temperature {self.temperature:g} must be at least 0.")


class BenchStartupConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time from the command to a server that is ready."""

    num_iters_cold: Annotated[_Count, Meta(description="Starts with the model's files out of the page cache.")] = 3
    num_iters_warmup: Annotated[_Count, Meta(description="Starts before the warm ones, which are not measured.")] = 1
    num_iters_warm: Annotated[_Count, Meta(description="Starts with the model's files in the page cache.")] = 3
    output_json: Annotated[str | None, Meta(description="File to write the figures to.")] = None
    disable_tqdm: Annotated[bool, Meta(description="No progress bar.")] = False

    def __post_init__(self) -> None:
        if not self.num_iters_cold and not self.num_iters_warm:
            raise ConfigError("--num-iters-cold 0 and --num-iters-warm 0 leave nothing to measure.")


class BenchKernelsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Single kernels, and what the machine can do at most."""

    device: Annotated[
        Literal["cpu", "cuda"],
        Meta(description="cpu: the compiled kernels. Those of a GPU are timed by `python -m tools.gpu_check`."),
    ] = "cpu"
    cpu_threads: Annotated[
        int | None, Meta(description="Threads to run on. Default: the CPUs that this process may use.")
    ] = None
    cpu_instruction_set: Annotated[
        str, Meta(description="Instructions to use: avx2, portable, ... auto: the best that the CPU has.")
    ] = "auto"
    output_json: Annotated[str | None, Meta(description="File to write the figures to.")] = None

    def __post_init__(self) -> None:
        if self.device == "cuda":
            raise ConfigError(
                "--device cuda: this command times the compiled CPU kernels. Those of a GPU are timed by "
                "`python -m tools.gpu_check`, in the source tree."
            )
        if self.cpu_threads is not None and not 1 <= self.cpu_threads <= 1024:
            raise ConfigError(f"--cpu-threads {self.cpu_threads} must be from 1 to 1024.")
