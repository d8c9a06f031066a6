"""What the engine core and an executor say to each other: one message a step each way, deltas only."""

from __future__ import annotations

from typing import Literal

import msgspec

from .adapters import Adapter
from .config import EngineConfig
from .errors import ErrorInfo
from .outputs import TokenLogprobs, UtilityResult
from .requests import CallUtility, Message
from .sampling_params import Sampling


class RankPlacement(msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True, gc=False):
    """Where one executor stands among those of its engine.

    Attributes:
        rank: its place in the mesh (`ipc.mesh`).
        index_on_host: its place among the executors of its host, those of other engines of the same start included:
            it takes the GPU of that number.
        num_on_host: how many they are; they share the host's CPUs and memory evenly.
        rendezvous: where the ranks of this epoch find each other: file:///path on one host, tcp://host:port across
            hosts; empty where there is one rank.
    """

    rank: int = 0
    index_on_host: int = 0
    num_on_host: int = 1
    rendezvous: str = ""


class LoadModel(Message, frozen=True, kw_only=True):
    """Load the weights, measure, allocate the KV pool. Answered by `ExecutorReady` or `ExecutorFailed`.

    Attributes:
        executor_epoch: goes into every later message; anything of another epoch is dropped.
        num_blocks: KV blocks to allocate; None at the first start, when the executors measure what fits all of them.
        placement: which of the executors this one is.
        adapters: to be read as well. At the first start one that can't be read is a `StartError`.
    """

    executor_epoch: int
    config: EngineConfig
    num_blocks: int | None = None
    placement: RankPlacement = RankPlacement()
    adapters: list[Adapter] = []


class LoadAdapter(Message, frozen=True, kw_only=True):
    """Read an adapter, beside the steps. Every rank answers with `AdapterLoaded` when rows may have it."""

    executor_epoch: int
    adapter: Adapter


class UnloadAdapter(Message, frozen=True, kw_only=True):
    """Forget an adapter, after the steps that were sent before; no row of a later step has it. It is not answered."""

    executor_epoch: int
    load_id: int


class NewRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True, gc=False):
    """A request (or child, or resumed request) that the executor does not hold: its full data.

    Attributes:
        row_id: the core's own number for it, never reused.
        child: which child of its request; half of the noise key.
        token_ids: prompt and output tokens known so far.
        num_prompt_tokens: how many of them are prompt; never changes, so penalties and counters survive preemption.
        num_computed_tokens: KV of these is in the block table already.
        block_table: its block ids, in order.
        salt: of the request's prefix cache: what one row wrote may be guessed for others of the same salt alone.
        adapter_id: load id of the LoRA adapter that its products add; 0: none.
        pooling: the row draws nothing: its prompt's hidden states become one vector, see `EmbedTask`. Empty: it draws.
    """

    row_id: int
    child: int
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_table: list[int]
    sampling: Sampling
    salt: str = ""
    adapter_id: int = 0
    pooling: Literal["", "last", "mean"] = ""


class ScheduledRow(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One row's share of a step.

    The row computes positions [num_computed_tokens, num_computed_tokens + num_scheduled_tokens). The executor keeps
    each row's tokens and appends what it draws, so a decode needs no token ids from the core.

    Attributes:
        new_block_ids: appended to the row's block table before the step; for a NewRow already part of block_table.
        num_draws: 0 for a prefill chunk that does not reach the row's last token; 1 as a rule; n where a prefill
            with n children ends: one draw per child 0..n-1 from the same logits. The row itself appends draw 0.
        replaced_block: (index, block_id) when copy on write gives the row another block there, or None.
        draft_token_ids: guesses of what follows the row's last token, which are computed behind it in this step; they
            count among num_scheduled_tokens. A draw follows the last token and each draft, up to the first that is not
            the draft behind it.
        drawn_token_ids: what the row has drawn since it was last scheduled, where pipeline stages follow each other:
            only the last of them draws. Its ranks have these tokens already.
        num_wanted_drafts: how many guesses of what follows its draw are of use, at most. For the guesses of a draft
            model, the row may write all slots of its block table from num_computed_tokens on.
        is_masked: the row may draw only what the step's `SamplingMasks` allow, which follow this message.
    """

    row_id: int
    num_computed_tokens: int
    num_scheduled_tokens: int
    num_draws: int = 1
    new_block_ids: list[int] = []
    replaced_block: tuple[int, int] | None = None
    drawn_token_ids: list[int] = []
    draft_token_ids: list[int] = []
    num_wanted_drafts: int = 0
    is_masked: bool = False


class ExecuteStep(Message, frozen=True, kw_only=True):
    """One step, the same for every rank; the mesh's output rank alone answers.

    Applied in this order: removed rows, block copies, new rows, scheduled rows.

    In each layer the keys and values of all rows are stored before any row attends: a row may read blocks that another
    row of the same step fills, as it does when requests with one prompt head are admitted together.

    Attributes:
        removed_row_ids: finished or preempted since the last step; their rows are dropped.
        block_copies: (source, target) block ids, copied on the device before this step's writes.
        rows: every row of the step, in batch order; new ones among them.
    """

    executor_epoch: int
    step_id: int
    removed_row_ids: list[int] = []
    block_copies: list[tuple[int, int]] = []
    new_rows: list[NewRow] = []
    rows: list[ScheduledRow] = []


class RowMasks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which tokens a row may draw, by its grammar.

    Attributes:
        masks: of each position that the row draws behind, its last token and each of its drafts in order, one bit a
            token id, of `ceil(vocab_size / 32)` little-endian words of 32 bits, the lowest first; 1: it may be drawn.
            Where the row draws for several children, they share the one mask. Empty where it does not matter what is
            drawn: the request has ended meanwhile.
    """

    row_id: int
    masks: bytes


class SamplingMasks(Message, frozen=True, kw_only=True):
    """What the masked rows of a step may draw. Every rank gets one for each step that has masked rows.

    It is sent when the tokens before are known: the executor computes the step's forward meanwhile, and waits for it
    before it draws.
    """

    executor_epoch: int
    step_id: int
    rows: list[RowMasks] = []


class RowResult(msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True, gc=False):
    """What a step gave one row. Rows without draws, prompt logprobs or errors are left out of a StepResult.

    Attributes:
        token_ids: one per draw; of a row with drafts, those drafts that were drawn, and the token drawn after them.
        logprobs: one per token, or empty.
        next_draft_ids: guesses of what follows these tokens, for the row's next step.
        prompt_logprobs: for prompt positions prompt_logprobs_start, +1, ...: each the logprob of the token there.
        pooled: [hidden_size] float32, little-endian, of a row with `pooling` whose prompt is complete; not normalized.
        error: this row failed in preparation or has no token left to draw; the other rows are not touched. The row is
            dead from then on: a step that was sent ahead may still name it, and it is removed with a later one.
    """

    row_id: int
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    prompt_logprobs_start: int = 0
    next_draft_ids: list[int] = []
    pooled: bytes = b""
    error: ErrorInfo | None = None


class StepResult(Message, frozen=True, kw_only=True):
    """The answer to `ExecuteStep`, in the order of its rows.

    Attributes:
        step_s: seconds that the step took of the executor, with all that kept it from the next one: device_s and
            host_gap_s, or more.
        device_s: seconds that the device computed; on a CPU, the whole step.
        host_gap_s: seconds that the device then idled before this step, for want of its launch, though rows that it
            computed before and computes again were there all the time.
    """

    executor_epoch: int
    step_id: int
    rows: list[RowResult] = []
    step_s: float = 0.0
    device_s: float = 0.0
    host_gap_s: float = 0.0


class ExecutorReady(Message, frozen=True, kw_only=True):
    """The executor can take steps.

    Attributes:
        num_blocks: KV blocks allocated.
        device: its type, "cpu" or "cuda".
        startup: (phase, seconds) in order.
        memory: one line with the whole memory budget.
        device_name: for people, as "NVIDIA H200"; empty for a CPU.
        failed_adapters: load ids of those of `LoadModel` that can't be read any more, and why.
        adapter_digests: load ids of all others, and the digests of their files.
    """

    executor_epoch: int
    num_blocks: int
    device: str
    dtype: str
    kv_cache_dtype: str
    startup: tuple[tuple[str, float], ...] = ()
    memory: str = ""
    device_name: str = ""
    failed_adapters: dict[int, ErrorInfo] = {}
    adapter_digests: dict[int, str] = {}


class AdapterLoaded(Message, frozen=True, kw_only=True):
    """The answer of a rank to `LoadAdapter`.

    Attributes:
        digest: of its files.
        error: why it can't be read; nothing else has changed then.
    """

    executor_epoch: int
    load_id: int
    digest: str = ""
    error: ErrorInfo | None = None


class ExecutorBusy(Message, frozen=True, kw_only=True):
    """The executor is at work that takes longer than a step (loading, compiling, capturing a graph), and runs.

    Attributes:
        reason: what it does, for the log.
        limit_s: seconds from this message within which it will say something again; afterwards it counts as stalled.
            0: what was announced last is over.
    """

    executor_epoch: int
    reason: str
    limit_s: float


class ExecutorFailed(Message, frozen=True, kw_only=True):
    """The executor can't start (a `StartError`) or failed a step; it ends after this message."""

    executor_epoch: int
    error: ErrorInfo


class Shutdown(Message, frozen=True, kw_only=True):
    """End in order: finish nothing, free everything, exit 0."""


ToExecutor = LoadModel | LoadAdapter | UnloadAdapter | ExecuteStep | SamplingMasks | CallUtility | Shutdown
FromExecutor = ExecutorReady | AdapterLoaded | StepResult | UtilityResult | ExecutorBusy | ExecutorFailed
