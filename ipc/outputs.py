"""What the engine core says to a client."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from .adapters import Adapter
from .errors import ErrorInfo
from .requests import Message, Ping

CoreKey = tuple[str, int]
"""(engine_id, core_epoch): two cores never have the same."""


STEP_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Bounds, inclusive, by which `StepStats` sorts steps; vLLM's buckets of iteration_tokens_total."""


class FinishReason(enum.IntEnum):
    """Why a child's tokens ended. The wire carries the number, people see the name in lower case."""

    STOP = 0  # an end token, or a stop string found by the client
    LENGTH = 1  # max_tokens or the context is reached
    ABORT = 2  # the client asked, or went away
    ERROR = 3  # see the error of the RequestEnd

    def __str__(self) -> str:
        return self.name.lower()


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One token's logprob among its alternatives, from the unfiltered fp32 distribution.

    Attributes:
        token_id: the token that was drawn (or stands in the prompt).
        logprob: its natural logarithm of probability; an fp32 value, exact in 64 bits.
        rank: 1 for the most likely token.
        top_token_ids, top_logprobs: the most likely tokens, best first.
    """

    token_id: int
    logprob: float
    rank: int
    top_token_ids: list[int] = []
    top_logprobs: list[float] = []


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True, gc=False):
    """New tokens of one child.

    Attributes:
        request_id: the client's id.
        child: 0 <= child < n.
        first_index: index of token_ids[0] among the child's output tokens; lets a client drop duplicates.
        token_ids: the new output tokens; may be empty when only the end is reported.
        logprobs: one entry a token, or empty.
        finish_reason: set on the child's last delta.
        stop_reason: the stop token id that ended it; None for the model's own end token.
        ends_in_text: with finish_reason stop: the last token is no end token but text, behind which a grammar allows
            nothing.
    """

    request_id: int
    child: int = 0
    first_index: int = 0
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    ends_in_text: bool = False


class RequestStart(msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True, gc=False):
    """A prefill is complete: sent once, in the step that brings the request's first token.

    Attributes:
        num_cached_tokens: prompt tokens whose KV came from the prefix cache at first admission.
        queue_s: seconds from the core's receipt to the first schedule.
        prompt_logprobs: one entry a prompt token but the first, or empty.
        adapter_digest: of the files of the adapter that it is computed with; empty: of none.
    """

    request_id: int
    num_cached_tokens: int = 0
    queue_s: float = 0.0
    prompt_logprobs: list[TokenLogprobs] = []
    adapter_digest: str = ""


class Embedding(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an `EmbedTask` gives, just before its request's end.

    Attributes:
        vector: [hidden_size] float32, little-endian.
        num_cached_tokens: prompt tokens whose KV came from the prefix cache.
    """

    request_id: int
    vector: bytes
    num_cached_tokens: int = 0


class RequestEnd(msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True, gc=False):
    """The terminal message: exactly one per request, after the last delta of its last child.

    Attributes:
        error: why it failed or was refused; None when every child finished or was aborted.
        is_refused: it was never accepted; the error is the caller's to mend.
        num_preemptions: how often its blocks were taken and recomputed.
        num_draft_tokens: guesses of its next tokens that were checked.
        num_accepted_tokens: of those, the ones that were right.
    """

    request_id: int
    error: ErrorInfo | None = None
    is_refused: bool = False
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class StepStats(msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True, gc=False):
    """The whole core's state after a step. Counters count from the core's start; clients take differences."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_used_blocks: int = 0
    num_steps: int = 0  # counter: steps that came back
    num_scheduled_tokens: int = 0  # of the last step that came back
    num_prompt_tokens: int = 0  # counter: prefilled, computed or cached
    num_generation_tokens: int = 0  # counter
    prefix_cache_queries: int = 0  # counter, tokens
    prefix_cache_hits: int = 0  # counter, tokens
    num_preemptions: int = 0  # counter
    step_s: float = 0.0  # the last step's time in the executor
    num_filled_slots: int = 0  # of the used blocks' slots, those that hold a token or that a step in flight writes
    num_busy_rows: int = 0  # counter: rows that computed, of the steps that left requests waiting
    num_available_rows: int = 0  # counter: rows that these steps could have had
    num_waiting_tokens: int = 0  # prompt tokens of the requests that were never scheduled
    num_executor_restarts: int = 0  # counter
    device_s: float = 0.0  # counter: seconds that the device computed
    host_gap_s: float = 0.0  # counter: seconds that it idled between steps, waiting for the next one's launch
    num_draft_checks: int = 0  # counter: rows of steps that checked drafts
    num_draft_tokens: int = 0  # counter: drafts that were checked
    accepted_at: tuple[int, ...] = ()  # counters: by place among a row's drafts, how many were accepted there
    num_step_tokens: int = 0  # counter: tokens of the steps that came back
    step_sizes: tuple[int, ...] = ()  # counters: steps by their tokens, up to each of STEP_SIZES, and above them all
    is_serving: bool = True  # False from an executor's death or stall until another one takes steps
    is_paused: bool = False
    sleep_level: int = 0  # above 0: it was put to sleep, so that there are no executors
    running_adapters: tuple[int, ...] = ()  # load ids of those that running requests are computed with, ascending
    waiting_adapters: tuple[int, ...] = ()  # and of those that waiting requests will be


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client must know of the engine it attached to.

    Attributes:
        model: the model as it was asked for.
        model_path: the local file or directory; a client on the same machine loads the tokenizer from it.
        served_model_names: the names that HTTP clients use.
        vocab_size: token ids below it are valid.
        device: its type, "cpu" or "cuda".
        startup: (phase, seconds) in the order of the start.
        memory: one line with the whole memory budget.
        device_name: for people, as "NVIDIA H200"; empty for a CPU.
        seed: from it clients derive the seeds of requests that bring none; None: they draw random ones.
        tensor_parallel_size: executors of a core that share each layer.
        pipeline_parallel_size: groups of layers, each computed by as many.
        data_parallel_size: cores of the engine, each with the whole model; `core_address` says where they listen.
        data_parallel_rank: which of them this is.
        speculative_method: who guesses tokens ahead; empty: nobody.
        num_speculative_tokens: most guesses for a row of a step.
        has_adapters: whether LoRA adapters are served, those too that are loaded later.
        adapters: those that can be asked for now; what changes is told with `StepOutputs`.
        max_loras: most of them that are loaded at once; 0: none are served.
        gpu_memory_utilization: the share of the device's memory that the engine was given.
    """

    model: str
    model_path: str
    served_model_names: tuple[str, ...]
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    max_logprobs: int
    block_size: int
    num_blocks: int
    device: str
    dtype: str
    kv_cache_dtype: str
    scheduling_policy: str
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    startup: tuple[tuple[str, float], ...] = ()
    memory: str = ""
    device_name: str = ""
    seed: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    speculative_method: str = ""
    num_speculative_tokens: int = 0
    has_adapters: bool = False
    adapters: tuple[Adapter, ...] = ()
    max_loras: int = 0
    gpu_memory_utilization: float = 0.0


class Ready(Message, frozen=True, kw_only=True):
    """The answer to `Hello`, once the executors are loaded.

    Attributes:
        core_epoch: counts the cores that the engine has had; another one is a core without memory.
        engine_id: made anew whenever the whole engine starts; with another one, the epochs begin at 1 again.
    """

    protocol_version: int
    core_epoch: int
    info: EngineInfo
    engine_id: str = ""

    @property
    def core(self) -> CoreKey:
        """Which core this is, of all that there ever were at an address."""
        return (self.engine_id, self.core_epoch)


class StepOutputs(Message, frozen=True, kw_only=True):
    """All that one step brought for one client: exactly one message a step and client.

    Attributes:
        accepted: requests taken since the last message; HTTP headers may go out now.
        starts, deltas, embeddings, ends: see their types; apply them in this order.
        scheduled: requests that are in a step of this core for the first time. When it ends, one of them may be why.
        adapters: all adapters that can be asked for, where these have changed; else None.
    """

    accepted: list[int] = []
    starts: list[RequestStart] = []
    deltas: list[TokenDelta] = []
    ends: list[RequestEnd] = []
    stats: StepStats | None = None
    scheduled: list[int] = []
    embeddings: list[Embedding] = []
    adapters: list[Adapter] | None = None


class UtilityResult(Message, frozen=True, kw_only=True):
    """The answer to `CallUtility`."""

    call_id: int
    result: Any = None  # Any: plain values whose shape each utility documents
    error: ErrorInfo | None = None


class PrefixCacheChanges(Message, frozen=True, kw_only=True):
    """What entered and left the core's prefix cache, to those who sent `WatchPrefixCache`.

    Attributes:
        stored: `block_key` of each block that can be found since.
        evicted: of each that can't be found any more; some may never have been told of.
        is_snapshot: `stored` is all that there is; what was told before is void.
    """

    stored: list[int] = []
    evicted: list[int] = []
    is_snapshot: bool = False


class Goodbye(Message, frozen=True, kw_only=True):
    """The core won't serve this client (any more): a version that does not fit, a failed start, an ordered stop."""

    error: ErrorInfo


CoreMessage = Ready | StepOutputs | UtilityResult | Ping | Goodbye | PrefixCacheChanges
