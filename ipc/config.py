"""Everything that can be configured, its defaults and its checks: the only defaults of the engine.

The command line is generated from these fields: a field's name is the flag (`max_num_seqs` -> `--max-num-seqs`), its
`Meta.description` the help text. Facts learned at start (num_blocks, the fitted max_model_len) travel up in
`ExecutorReady` and `Ready`; they never edit a config.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .errors import ConfigError

DType = Literal["auto", "float32", "bfloat16", "float16"]
KVCacheDType = Literal["auto", "float32", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"]
AttentionBackend = Literal["auto", "triton", "flashinfer", "flash_attn"]
SchedulingPolicy = Literal["fcfs", "priority"]
LogLevel = Literal["debug", "info", "warning", "error"]


_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s]+/?")


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
        int | None, Meta(description="Threads of the CPU kernels. Default: the CPUs that this process may use.")
    ] = None
    cpu_instruction_set: Annotated[
        str, Meta(description="Instructions of the CPU kernels: avx2, portable, ... auto: the best that the CPU has.")
    ] = "auto"
    generation_config: Annotated[
        Literal["auto", "vllm"],
        Meta(description="auto: sampling defaults from the model's generation_config.json; vllm: OpenAI's defaults."),
    ] = "auto"
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
        int | None, Meta(description="Size of the KV pool in bytes, instead of a share of the memory.")
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
    scheduling_policy: Annotated[
        SchedulingPolicy, Meta(description="fcfs: first come first served; priority: lower priority value first.")
    ] = "fcfs"
    async_scheduling: Annotated[
        bool, Meta(description="Schedule and send a step before the last one's tokens are known.")
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


class ParallelConfig(_Config, frozen=True, kw_only=True):
    """How one model is spread over devices."""

    tensor_parallel_size: Annotated[int, Meta(description="Devices that share each layer.")] = 1
    pipeline_parallel_size: Annotated[int, Meta(description="Groups of layers, one after the other.")] = 1

    def __post_init__(self) -> None:
        for flag, size in (
            ("--tensor-parallel-size", self.tensor_parallel_size),
            ("--pipeline-parallel-size", self.pipeline_parallel_size),
        ):
            if size != 1:
                raise ConfigError(f"{flag} {size} is not supported yet; this version runs on one device: give 1.")


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
    supervision: SupervisionConfig = SupervisionConfig()
    observability: ObservabilityConfig = ObservabilityConfig()
    log_level: Annotated[LogLevel, Meta(description="How much the processes log.")] = "info"


class ListenConfig(_Config, frozen=True, kw_only=True):
    """Where clients attach to an engine without HTTP, and who may."""

    listen: Annotated[str, Meta(description="Where clients attach: ipc:///path or tcp://host:port.")]
    curve_key: Annotated[
        str | None, Meta(description="File of the engine's secret key, for tcp://; `pagewire keys make` makes one.")
    ] = None
    allow_clients: Annotated[
        tuple[str, ...],
        Meta(description="File of a client's public key, or directory of such *.key files (may be repeated)."),
    ] = ()
    insecure: Annotated[
        bool, Meta(description="Allow tcp:// without keys: anyone who reaches the port may use the engine.")
    ] = False

    def __post_init__(self) -> None:
        if self.curve_key is not None and self.insecure:
            raise ConfigError("--curve-key and --insecure contradict each other; leave one of them out.")
        if self.curve_key is not None and not self.allow_clients:
            raise ConfigError("--curve-key alone lets nobody in; name the clients' public keys by --allow-clients.")
        if self.allow_clients and self.curve_key is None:
            raise ConfigError("--allow-clients needs the engine's own key as well; give --curve-key FILE.")


class ServerConfig(_Config, frozen=True, kw_only=True):
    """The HTTP frontend."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "0.0.0.0"  # noqa: S104 - as usual manifests expect
    port: Annotated[int, Meta(description="Port to listen on.")] = 8000
    uds: Annotated[str | None, Meta(description="Unix socket to listen on instead of host and port.")] = None
    api_key: Annotated[tuple[str, ...], Meta(description="Bearer key that clients must send (may be repeated).")] = ()
    engine: Annotated[
        str | None, Meta(description="Attach to a running engine at this address instead of starting one.")
    ] = None
    engine_key: Annotated[
        str | None, Meta(description="File of that engine's public key, if it listens on tcp:// with keys.")
    ] = None
    curve_key: Annotated[
        str | None, Meta(description="File of this frontend's own secret key, which that engine must allow.")
    ] = None
    api_key_file: Annotated[
        str | None, Meta(description="File of bearer keys, one a line; lines that begin with # don't count.")
    ] = None
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(description="Web pages that may use the server from a browser (CORS), like https://a.example; * is any."),
    ] = ()
    allowed_methods: Annotated[
        tuple[str, ...], Meta(description="Methods that pages of other origins may use; * is any.")
    ] = ("*",)
    allowed_headers: Annotated[
        tuple[str, ...], Meta(description="Request headers that pages of other origins may send; * is any.")
    ] = ("*",)
    allow_credentials: Annotated[
        bool, Meta(description="Let pages of the allowed origins send cookies and client certificates.")
    ] = False
    ssl_certfile: Annotated[
        str | None, Meta(description="PEM file of the server's certificate and its chain; with it, HTTPS is served.")
    ] = None
    ssl_keyfile: Annotated[
        str | None, Meta(description="PEM file of the certificate's key, if --ssl-certfile does not hold it.")
    ] = None
    ssl_ca_certs: Annotated[
        str | None, Meta(description="PEM file of the authorities that clients' certificates are checked by.")
    ] = None
    ssl_cert_reqs: Annotated[
        int, Meta(description="Certificates of clients: 0 not asked for, 1 checked if they send one, 2 required.")
    ] = 0
    request_timeout: Annotated[
        float | None,
        Meta(description="Seconds from its arrival that a request may take; its own `timeout` can only be shorter."),
    ] = None
    chat_template: Annotated[
        str | None, Meta(description="Jinja chat template, a file or the text itself, instead of the model's.")
    ] = None
    trust_request_chat_template: Annotated[
        bool, Meta(description="Let requests bring a chat template of their own (`chat_template`).")
    ] = False
    disable_log_stats: Annotated[bool, Meta(description="No line of throughput figures every 10 s.")] = False
    enable_log_requests: Annotated[bool, Meta(description="Log each request.")] = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port {self.port} must be from 0 to 65535.")
        if any(not key.strip() for key in self.api_key):
            raise ConfigError("--api-key must not be empty.")
        if self.request_timeout is not None and not 0 < self.request_timeout < math.inf:
            raise ConfigError(f"--request-timeout {self.request_timeout} must be a positive number of seconds.")
        self._check_origins()
        self._check_tls()

    @property
    def needs_key(self) -> bool:
        """Whether clients need an API key."""
        return bool(self.api_key) or self.api_key_file is not None

    def _check_origins(self) -> None:
        for origin in self.allowed_origins:
            if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"--allowed-origins {origin} is no origin; give scheme://host or scheme://host:port without a path."
                )
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigError(
                "--allow-credentials with --allowed-origins * would hand them to every web page; name the origins."
            )

    def _check_tls(self) -> None:
        if self.ssl_cert_reqs not in (0, 1, 2):
            raise ConfigError(f"--ssl-cert-reqs {self.ssl_cert_reqs} must be 0, 1 or 2.")
        if self.ssl_certfile is None:
            for flag, is_given in (
                ("--ssl-keyfile", self.ssl_keyfile is not None),
                ("--ssl-ca-certs", self.ssl_ca_certs is not None),
                ("--ssl-cert-reqs", self.ssl_cert_reqs != 0),
            ):
                if is_given:
                    raise ConfigError(f"{flag} needs --ssl-certfile, the server's own certificate.")
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            raise ConfigError(f"--ssl-cert-reqs {self.ssl_cert_reqs} needs --ssl-ca-certs to check certificates by.")
        if (self.engine_key is None) != (self.curve_key is None):
            raise ConfigError(
                "--engine-key and --curve-key go together: give both, or none for an engine without keys."
            )
        if self.engine_key is not None and self.engine is None:
            raise ConfigError("--engine-key is for an engine that runs already; give its address by --engine.")
