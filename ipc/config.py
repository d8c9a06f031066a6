"""Everything that can be configured of the engine, its defaults and its checks: the only defaults that it has.

The command line is generated from these fields: a field's name is the flag (`max_num_seqs` -> `--max-num-seqs`), its
`Meta.description` the help text. Facts learned at start (num_blocks, the fitted max_model_len) travel up in
`ExecutorReady` and `Ready`; they never edit a config.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .errors import ConfigError
from .grammar_config import GrammarConfig
from .logs import LogFormat
from .lora_config import LoraConfig
from .parallel_config import ParallelConfig
from .speculative_config import SpeculativeConfig

DType = Literal["auto", "float32", "bfloat16", "float16"]
KVCacheDType = Literal["auto", "float32", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"]
Quantization = Literal["awq", "gptq", "fp8", "int8", "gguf", "compressed-tensors"]
AttentionBackend = Literal["auto", "triton", "flashinfer", "flash_attn"]
SchedulingPolicy = Literal["fcfs", "priority"]
LogLevel = Literal["debug", "info", "warning", "error"]


class _Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shared struct options; not a place for fields."""


class ModelOptions(_Config, frozen=True, kw_only=True):
    """Which model, and how it is run."""

    model: Annotated[
        str, Meta(description="Hub id, directory, GGUF file or org/repo:QUANT. Default: the packaged SmolLM2.")
    ] = "SmolLM2-135M-Instruct"
    model_path: str = ""  # resolved by whoever starts the engine; not a flag
    revision: Annotated[str | None, Meta(description="Branch, tag or commit of a hub model.")] = None
    download_dir: Annotated[str | None, Meta(description="Where hub models are kept instead of HF_HOME.")] = None
    served_model_name: Annotated[
        tuple[str, ...], Meta(description="Names that clients use; the first one is reported back.")
    ] = ()
    dtype: Annotated[DType, Meta(description="Type of weights and activations.")] = "auto"
    quantization: Annotated[
        Quantization | None,
        Meta(
            description="How the checkpoint is quantized, which it says itself. fp8 or int8 with a plain checkpoint: "
            "its weights are rounded while they are loaded."
        ),
    ] = None
    max_model_len: Annotated[
        int | None, Meta(description="Longest prompt + output in tokens. Default: the model's, lowered to fit memory.")
    ] = None
    seed: Annotated[int | None, Meta(description="Makes the seeds of requests that bring none reproducible.")] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Meta(description="Where the model runs; cuda: NVIDIA and AMD GPUs alike.")
    ] = "auto"
    kernels: Annotated[
        Literal["auto", "cpu", "triton", "reference"],
        Meta(
            description="Backend of the ops. cpu: compiled kernels; triton: for GPUs, interpreted on a CPU, for tests; "
            "reference: torch, slow, runs anywhere."
        ),
    ] = "auto"
    attention_backend: Annotated[
        AttentionBackend, Meta(description="What computes attention on a GPU. auto: triton.")
    ] = "auto"
    enforce_eager: Annotated[bool, Meta(description="Capture no CUDA graphs: every step launches its kernels.")] = False
    batch_invariant: Annotated[
        bool,
        Meta(description="On a GPU: the same bits for a request in any batch, at the cost of slower matrix products."),
    ] = False
    load_format: Annotated[
        Literal["auto", "dummy"],
        Meta(description="auto: read the checkpoint; dummy: random weights of its shapes, to measure without them."),
    ] = "auto"
    cpu_threads: Annotated[
        int | None,
        Meta(description="Threads of each executor's CPU kernels. Default: its part of the CPUs that may be used."),
    ] = None
    cpu_instruction_set: Annotated[
        str, Meta(description="Instructions of the CPU kernels: avx2, portable, ... auto: the best that the CPU has.")
    ] = "auto"
    generation_config: Annotated[
        Literal["auto", "vllm"],
        Meta(description="auto: sampling defaults from the model's generation_config.json; vllm: OpenAI's defaults."),
    ] = "auto"
    override_generation_config: Annotated[
        dict[str, Any] | None,  # Any: checked by whoever reads the checkpoint's own defaults
        Meta(
            description="Sampling defaults over those of --generation-config, as JSON; the values of requests win: "
            '{"temperature": 0.6, "top_p": 0.95}.'
        ),
    ] = None
    max_logprobs: Annotated[
        int, Meta(ge=-1, description="Most alternatives that logprobs may ask for; -1 for no limit.")
    ] = 20

    def __post_init__(self) -> None:
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(
                f"--max-model-len {self.max_model_len} leaves no room for a prompt and a token; give 2 or more."
            )
        if self.cpu_threads is not None and not 1 <= self.cpu_threads <= 1024:
            raise ConfigError(f"--cpu-threads {self.cpu_threads} must be from 1 to 1024.")


class CacheConfig(_Config, frozen=True, kw_only=True):
    """The pool of KV blocks."""

    block_size: Annotated[int, Meta(description="Tokens a KV block holds.")] = 16
    gpu_memory_utilization: Annotated[
        float, Meta(description="Share of the device's memory (a CPU: cgroup limit or RAM) for weights, work and KV.")
    ] = 0.9
    kv_cache_memory_bytes: Annotated[
        int | None, Meta(description="Size of each executor's KV pool in bytes, instead of a share of the memory.")
    ] = None
    kv_cache_dtype: Annotated[
        KVCacheDType, Meta(description="Type of cached keys and values. auto: float16 on a CPU, else the model's.")
    ] = "auto"
    num_gpu_blocks_override: Annotated[
        int | None, Meta(description="Number of KV blocks, instead of a measured one.")
    ] = None
    enable_prefix_caching: Annotated[bool, Meta(description="Share KV blocks of equal prompt heads.")] = True

    def __post_init__(self) -> None:
        if not (1 <= self.block_size <= 256 and self.block_size & (self.block_size - 1) == 0):
            raise ConfigError(f"--block-size {self.block_size} must be a power of two from 1 to 256.")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"--gpu-memory-utilization {self.gpu_memory_utilization} must be above 0 and at most 1 (a fraction)."
            )
        if self.kv_cache_memory_bytes is not None and self.kv_cache_memory_bytes <= 0:
            raise ConfigError(f"--kv-cache-memory-bytes {self.kv_cache_memory_bytes} must be positive.")
        if self.num_gpu_blocks_override is not None and self.num_gpu_blocks_override < 1:
            raise ConfigError(f"--num-gpu-blocks-override {self.num_gpu_blocks_override} must be at least 1.")


class StepLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large a step may be, once the device that computes it is known.

    Attributes:
        max_num_seqs: requests that run at once.
        max_num_batched_tokens: tokens of a step, all requests together.
    """

    max_num_seqs: int
    max_num_batched_tokens: int


# A CPU prefills some hundred tokens in the time that a decode may wait. A GPU is only busy with thousands of them, and
# each request more that runs beside the others takes it next to no time.
CPU_STEP_LIMITS = StepLimits(max_num_seqs=128, max_num_batched_tokens=512)
GPU_STEP_LIMITS = StepLimits(max_num_seqs=256, max_num_batched_tokens=8192)


class SchedulerConfig(_Config, frozen=True, kw_only=True):
    """How requests share steps."""

    max_num_seqs: Annotated[
        int | None,
        Meta(
            description="Most requests that run at once. "
            f"Default: {CPU_STEP_LIMITS.max_num_seqs} on a CPU, {GPU_STEP_LIMITS.max_num_seqs} on a GPU."
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        Meta(
            description="Token budget of a step; longer prompts are prefilled in chunks. "
            f"Default: {CPU_STEP_LIMITS.max_num_batched_tokens} on a CPU, "
            f"{GPU_STEP_LIMITS.max_num_batched_tokens} on a GPU."
        ),
    ] = None
    target_itl_ms: Annotated[
        float,
        Meta(
            description="Prefills share a step with decodes as long as it takes no longer than this, in milliseconds, "
            "or than 3 times what its decodes take alone. 0: prefills are not limited."
        ),
    ] = 50.0
    long_prefill_token_threshold: Annotated[
        int, Meta(description="Most tokens of one prompt in a step. 0: as many as there is room for.")
    ] = 0
    scheduling_policy: Annotated[
        SchedulingPolicy, Meta(description="fcfs: first come first served; priority: lower priority value first.")
    ] = "fcfs"
    async_scheduling: Annotated[
        bool,
        Meta(
            description="Schedule and send a step before the last one's tokens are known. Without, pipeline stages "
            "wait for each other."
        ),
    ] = True
    max_waiting_requests: Annotated[
        int, Meta(description="Most requests that may wait for their first step; more get a 503. 0: no limit.")
    ] = 4096
    max_waiting_tokens: Annotated[
        int, Meta(description="Most prompt tokens that may wait for their first step; more get a 503. 0: no limit.")
    ] = 4 * 2**20

    def __post_init__(self) -> None:
        for flag, most in (
            ("--max-waiting-requests", self.max_waiting_requests),
            ("--max-waiting-tokens", self.max_waiting_tokens),
        ):
            if most < 0:
                raise ConfigError(f"{flag} {most} must be at least 1, or 0 for no limit.")
        if self.max_num_seqs is not None and self.max_num_seqs < 1:
            raise ConfigError(f"--max-num-seqs {self.max_num_seqs} must be at least 1.")
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < 1:
            raise ConfigError(f"--max-num-batched-tokens {self.max_num_batched_tokens} must be at least 1.")
        if self.long_prefill_token_threshold < 0:
            raise ConfigError(
                f"--long-prefill-token-threshold {self.long_prefill_token_threshold} must be at least 1, or 0 for no "
                "limit."
            )
        if not 0 <= self.target_itl_ms < math.inf:
            raise ConfigError(f"--target-itl-ms {self.target_itl_ms} must be 0 or a positive number of milliseconds.")

    def step_limits(self, device: str) -> StepLimits:
        """Return how large a step may be: what was given, and the device's defaults for the rest.

        Args:
            device: the type of the device that the model runs on, "cpu" or "cuda"; never "auto".
        """
        defaults = GPU_STEP_LIMITS if device == "cuda" else CPU_STEP_LIMITS
        return StepLimits(
            max_num_seqs=defaults.max_num_seqs if self.max_num_seqs is None else self.max_num_seqs,
            max_num_batched_tokens=(
                defaults.max_num_batched_tokens if self.max_num_batched_tokens is None else self.max_num_batched_tokens
            ),
        )


class SupervisionConfig(_Config, frozen=True, kw_only=True):
    """When a process counts as dead, and how often it is started again."""

    stall_limit: Annotated[
        float,
        Meta(description="Seconds without an answer after which a process counts as hung: it is killed and replaced."),
    ] = 30.0
    max_restarts: Annotated[
        int, Meta(description="Deaths in a row, without a finished step between, after which the engine gives up.")
    ] = 5
    shutdown_timeout: Annotated[
        float, Meta(description="Seconds that accepted requests have to finish after SIGTERM; a second one ends all.")
    ] = 20.0

    def __post_init__(self) -> None:
        if not 0 <= self.shutdown_timeout < math.inf:
            raise ConfigError(f"--shutdown-timeout {self.shutdown_timeout} must be at least 0 seconds.")
        if not 1 <= self.stall_limit < math.inf:
            raise ConfigError(f"--stall-limit {self.stall_limit} must be at least 1 second.")
        if self.max_restarts < 0:
            raise ConfigError(f"--max-restarts {self.max_restarts} must be at least 0.")


class ObservabilityConfig(_Config, frozen=True, kw_only=True):
    """What is recorded of the engine at work."""

    profile_steps: Annotated[
        str | None,
        Meta(description="File for a timeline of the first 1000 steps, as chrome://tracing and Perfetto show it."),
    ] = None


class EngineConfig(_Config, frozen=True, kw_only=True):
    """What the engine core and its executors are started with."""

    model: ModelOptions = ModelOptions()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    parallel: ParallelConfig = ParallelConfig()
    speculative: SpeculativeConfig = SpeculativeConfig()
    lora: LoraConfig = LoraConfig()
    structured_outputs: GrammarConfig = GrammarConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    observability: ObservabilityConfig = ObservabilityConfig()
    log_level: Annotated[LogLevel, Meta(description="How much the processes log.")] = "info"
    log_format: Annotated[
        LogFormat, Meta(description="How they log: text for people, or an object of JSON a line.")
    ] = "text"

    def __post_init__(self) -> None:
        if self.observability.profile_steps is not None and self.parallel.is_on_other_hosts:
            raise ConfigError("--profile-steps gathers the steps of one host's processes in a file; not with others.")
        if self.speculative.method == "draft_model" and self.parallel.is_on_other_hosts:
            raise ConfigError(
                f"--speculative-model {self.speculative.speculative_model} is not served with executors on other "
                "hosts: leave it out, or give --speculative-method ngram."
            )

    @property
    def runs_ahead(self) -> bool:
        """Whether a child's next step is sent before its last one is answered."""
        return self.scheduler.async_scheduling and self.parallel.pipeline_parallel_size == 1

    @property
    def max_steps_in_flight(self) -> int:
        """Steps that the core sends before the first of them is answered: one a pipeline stage, one ahead without."""
        if not self.scheduler.async_scheduling:
            return 1
        return max(self.parallel.pipeline_parallel_size, 2)
