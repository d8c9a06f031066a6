"""An executor without a model, whose KV memory is an oracle.

A slot holds the digest of the token prefix that was written there instead of keys and values. At every step each row
must read back exactly its own prefix, so a skipped copy, a stale prefix cache entry or a block that was given away too
early can't go unnoticed. Tokens are a pure function of (prefix, seed, child): what a request answers alone is known
without an engine.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from pagewire.ipc.errors import ErrorInfo
from pagewire.ipc.outputs import FinishReason, TokenLogprobs
from pagewire.ipc.requests import AddRequest, EmbedTask, GenerateTask
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, NewRow, RowResult, ScheduledRow, StepResult
from tests.support.grammars import Follower, allowed_by

NO_MASKS: Mapping[int, bytes] = {}
GARBAGE = b"garbage"
TOKEN_S = 0.001  # what a step says that it took, per token
DRAFT_S = 0.00005  # per draft: cheap, so that they are checked
POISON = -1  # drawn by rows that read garbage; must never be committed


class OracleViolation(AssertionError):
    """The engine sent a step that no executor can run rightly."""


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise OracleViolation(what)


@dataclass
class _Row:
    child: int
    tokens: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_table: list[int]
    sampling: Sampling
    pooling: str = ""
    prefixes: list[bytes] = field(default_factory=list)  # prefixes[i]: digest of tokens[0..i]
    error: ErrorInfo | None = None
    allowed: list[set[int] | None] = field(default_factory=list)  # of each position that the step at hand draws behind
    drafts: list[int] = field(default_factory=list)  # that the step at hand checks
    told_tokens: list[int] = field(default_factory=list)  # what stages that draw nothing know of `tokens`

    def __post_init__(self) -> None:
        self.told_tokens = list(self.tokens)

    def prefix(self, position: int) -> bytes:
        while len(self.prefixes) <= position:
            before = self.prefixes[-1] if self.prefixes else b""
            self.prefixes.append(_digest(before, self.tokens[len(self.prefixes)]))
        return self.prefixes[position]


class FakeExecutor:
    """Runs steps as `ipc/steps.py` says.

    Args:
        num_blocks, block_size: of the pool.
        vocab_size: tokens are drawn below it.
        fails: says which new rows fail in preparation, and how.
        num_stages: of the pipeline that it plays. Only the last stage draws: what a row has drawn is known to the
            others as far as steps tell, and they must know all of a row's tokens whenever it is scheduled.
        max_drafts: guesses that it offers with each draw; some are right, some are not.
        writes_ahead: whether its guesses are a draft model's, which spoil the slots behind what a row has computed.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        fails: Callable[[NewRow], ErrorInfo | None] = lambda row: None,
        num_stages: int = 1,
        max_drafts: int = 0,
        writes_ahead: bool = False,
    ) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.slots: list[bytes | None] = [None] * (num_blocks * block_size)
        self.rows: dict[int, _Row] = {}
        self.num_steps = 0
        self.num_computed_tokens = 0
        self._fails = fails
        self._num_stages = num_stages
        self._max_drafts = max_drafts
        self._writes_ahead = writes_ahead
        self._num_failed = 0
        self._highest_row_id = 0
        self._last_step_id = 0
        self._masks: Mapping[int, bytes] = NO_MASKS

    def execute(self, step: ExecuteStep, masks: Mapping[int, bytes] = NO_MASKS) -> StepResult:
        """Run a step; `masks` are those of its masked rows, by row id."""
        self._masks = masks
        _require(step.step_id > self._last_step_id, f"step {step.step_id} after {self._last_step_id}")
        self._last_step_id = step.step_id
        self.num_steps += 1
        for row_id in step.removed_row_ids:
            _require(self.rows.pop(row_id, None) is not None, f"removed row {row_id} is not there")
        self._copy_blocks(step.block_copies)
        for new in step.new_rows:
            self._add_row(new)
        self._store(step.rows)
        results = [result for share in step.rows if (result := self._attend_and_draw(share)) is not None]
        num_drafts = sum(len(share.draft_token_ids) for share in step.rows)
        num_tokens = sum(share.num_scheduled_tokens for share in step.rows) - num_drafts
        step_s = TOKEN_S * num_tokens + DRAFT_S * num_drafts
        return StepResult(executor_epoch=step.executor_epoch, step_id=step.step_id, rows=results, step_s=step_s)

    def _copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        targets = [target for _, target in copies]
        _require(len(targets) == len(set(targets)), f"two copies to one block: {copies}")
        size = self.block_size
        contents = [self.slots[source * size : (source + 1) * size] for source, _ in copies]
        for target, content in zip(targets, contents, strict=True):
            self.slots[target * size : (target + 1) * size] = content

    def _add_row(self, new: NewRow) -> None:
        _require(new.row_id > self._highest_row_id, f"row {new.row_id} was used before")
        self._highest_row_id = new.row_id
        error = self._fails(new)
        self._num_failed += error is not None
        if new.pooling == "mean":
            _require(new.num_computed_tokens == 0, f"row {new.row_id} has no hidden states of cached tokens to average")
        self.rows[new.row_id] = _Row(
            new.child,
            list(new.token_ids),
            new.num_prompt_tokens,
            new.num_computed_tokens,
            list(new.block_table),
            new.sampling,
            new.pooling,
            error=error,
        )

    def _store(self, shares: list[ScheduledRow]) -> None:
        written: set[int] = set()
        for share in shares:
            row = self.rows[share.row_id]
            start, end = share.num_computed_tokens, share.num_computed_tokens + share.num_scheduled_tokens
            row.block_table.extend(share.new_block_ids)
            if share.replaced_block is not None:
                index, block_id = share.replaced_block
                row.block_table[index] = block_id
            if row.error is not None:
                continue
            self._tell(share, row)
            _require(share.num_scheduled_tokens > 0, f"row {share.row_id} computes nothing")
            _require(start == row.num_computed_tokens, f"row {share.row_id} goes on at {start}")
            _require(end <= len(row.block_table) * self.block_size, f"row {share.row_id} lacks blocks for {end} tokens")
            row.drafts = share.draft_token_ids
            if row.drafts:
                _require(share.num_draws == 1, f"row {share.row_id} checks drafts with {share.num_draws} draws")
                _require(end - start == 1 + len(row.drafts), f"row {share.row_id} computes more than its drafts")
                end -= len(row.drafts)
            _require(end <= len(row.tokens), f"row {share.row_id} is sent beyond its {len(row.tokens)} tokens")
            draws = end == len(row.tokens) and not row.pooling
            _require((share.num_draws > 0) == draws, f"row {share.row_id} draws at {end}")
            row.num_computed_tokens = end
            self.num_computed_tokens += end - start
            contents = [row.prefix(position) for position in range(start, end)]
            for draft in row.drafts:
                contents.append(_digest(contents[-1], draft))
            for position, content in enumerate(contents, start):
                slot = self._slot(row, position)
                _require(slot not in written, f"two rows write slot {slot} in one step")
                written.add(slot)
                self.slots[slot] = content

    def _tell(self, share: ScheduledRow, row: _Row) -> None:
        if self._num_stages == 1:
            _require(not share.drawn_token_ids, f"row {share.row_id} is told what its one stage has drawn")
            return
        row.told_tokens.extend(share.drawn_token_ids)
        known, drawn = len(row.told_tokens), len(row.tokens)
        _require(row.told_tokens == row.tokens, f"row {share.row_id} has {drawn} tokens, its first stages know {known}")

    def _attend_and_draw(self, share: ScheduledRow) -> RowResult | None:
        row = self.rows[share.row_id]
        if row.error is not None:
            return RowResult(row_id=share.row_id, error=row.error)
        end = row.num_computed_tokens
        is_poisoned = False
        for position in range(end):
            found = self.slots[self._slot(row, position)]
            if found != row.prefix(position):
                # Only what a failed row was to write may be missing; then the engine must drop what is drawn here.
                _require(self._num_failed > 0, f"row {share.row_id} reads another prefix at position {position}")
                is_poisoned = True
        if is_poisoned:
            for position in range(share.num_computed_tokens, end):
                self.slots[self._slot(row, position)] = GARBAGE
        if row.pooling:
            if end < len(row.tokens):
                return None
            return RowResult(row_id=share.row_id, pooled=GARBAGE if is_poisoned else vector_of(row.tokens))
        row.allowed = self._allowed(share)
        if is_poisoned:
            drawn = [POISON] * share.num_draws
            row.tokens.extend(drawn[:1])
        elif row.drafts:
            drawn = self._check_drafts(row)
        else:
            drawn = self._draw(row, share.num_draws)
            row.tokens.extend(drawn[:1])
        if share.num_wanted_drafts and self._writes_ahead:
            for position in range(row.num_computed_tokens, len(row.block_table) * self.block_size):
                self.slots[self._slot(row, position)] = GARBAGE
        prompt_logprobs = self._prompt_logprobs(row, share)
        if not drawn and not prompt_logprobs:
            return None
        wants_logprobs = row.sampling.num_logprobs is not None
        return RowResult(
            row_id=share.row_id,
            token_ids=drawn,
            logprobs=[logprob_of(token) for token in drawn] if wants_logprobs else [],
            next_draft_ids=self._guess(row)[: share.num_wanted_drafts] if drawn and not is_poisoned else [],
            prompt_logprobs=prompt_logprobs,
            prompt_logprobs_start=share.num_computed_tokens + 1,
        )

    def _allowed(self, share: ScheduledRow) -> list[set[int] | None]:
        num_positions = 1 + len(share.draft_token_ids)
        if not share.is_masked:
            _require(share.row_id not in self._masks, f"row {share.row_id} has masks, and is not masked")
            return [None] * num_positions
        _require(share.num_draws > 0, f"row {share.row_id} is masked, and draws nothing")
        masks = self._masks.get(share.row_id)
        if masks is None:
            raise OracleViolation(f"row {share.row_id} has no masks")
        if not masks:  # it has ended
            return [None] * num_positions
        size = -(-self.vocab_size // 32) * 4
        _require(len(masks) == size * num_positions, f"row {share.row_id} has masks of {len(masks)} bytes")
        return [allowed_by(masks, position, self.vocab_size) for position in range(num_positions)]

    def _check_drafts(self, row: _Row) -> list[int]:
        drawn = self._draw(row, 1)
        row.tokens.extend(drawn)
        for draft in row.drafts:
            if draft != drawn[-1]:
                break
            position = row.num_computed_tokens
            found = self.slots[self._slot(row, position)]
            _require(found == row.prefix(position), f"an accepted draft at position {position} is not what was written")
            row.num_computed_tokens += 1
            drawn += self._draw(row, 1, position=len(drawn))
            row.tokens.append(drawn[-1])
        return drawn

    def _guess(self, row: _Row) -> list[int]:
        """Return what the row would draw next, or from some place on something else."""
        prefix, guesses = row.prefix(len(row.tokens) - 1), list[int]()
        is_right = True
        for index in range(prefix[0] % (self._max_drafts + 1)):
            output_index = len(row.tokens) + index - row.num_prompt_tokens
            guess = draw_token(prefix, row.sampling, row.child, output_index, self.vocab_size)
            is_right = is_right and prefix[1] % 4 > 0
            guesses.append(guess if is_right else (guess + 1) % self.vocab_size)
            prefix = _digest(prefix, guesses[-1])
        return guesses

    def _draw(self, row: _Row, num_draws: int, position: int = 0) -> list[int]:
        prefix = row.prefix(row.num_computed_tokens - 1)
        output_index = row.num_computed_tokens - row.num_prompt_tokens
        children = [row.child] if num_draws == 1 else range(num_draws)
        if num_draws == 0:
            return []
        allowed = row.allowed[position]
        return [draw_token(prefix, row.sampling, child, output_index, self.vocab_size, allowed) for child in children]

    def _prompt_logprobs(self, row: _Row, share: ScheduledRow) -> list[TokenLogprobs]:
        if row.sampling.num_prompt_logprobs is None:
            return []
        last = min(row.num_computed_tokens, row.num_prompt_tokens - 1)
        return [logprob_of(row.tokens[position]) for position in range(share.num_computed_tokens + 1, last + 1)]

    def _slot(self, row: _Row, position: int) -> int:
        return row.block_table[position // self.block_size] * self.block_size + position % self.block_size


def draw_token(
    prefix: bytes,
    sampling: Sampling,
    child: int,
    output_index: int,
    vocab_size: int,
    allowed: Container[int] | None = None,
) -> int:
    """Return the token that follows a prefix, of those that are allowed; end tokens are skipped up to min_tokens."""
    masked = sampling.end_token_ids if output_index < sampling.min_tokens else []
    for attempt in range(1000):
        noise = hashlib.blake2b(prefix + struct.pack("<qii", sampling.seed, child, attempt), digest_size=8).digest()
        token = int.from_bytes(noise, "little") % vocab_size
        if token not in masked and (allowed is None or token in allowed):
            return token
    raise AssertionError("every token is masked")


def logprob_of(token_id: int) -> TokenLogprobs:
    """Return a logprob entry that names its token."""
    return TokenLogprobs(token_id=token_id, logprob=-float(token_id), rank=1)


def vector_of(tokens: list[int]) -> bytes:
    """Return what a prompt is embedded as, before it is normalized: it names every token."""
    prefix = b""
    for token in tokens:
        prefix = _digest(prefix, token)
    return struct.pack("<3f", *prefix[:3])


@dataclass(frozen=True)
class SoloAnswer:
    """What one child answers, whoever else is there."""

    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: int | None


def solo_answers(request: AddRequest, *, max_model_len: int, vocab_size: int) -> list[SoloAnswer]:
    """Return each child's answer, drawn without any engine."""
    if isinstance(request.task, EmbedTask):
        return []
    return [_solo_answer(request, child, max_model_len, vocab_size) for child in range(request.task.n)]


def _solo_answer(request: AddRequest, child: int, max_model_len: int, vocab_size: int) -> SoloAnswer:
    task, prompt = request.task, request.inputs.prompt_token_ids
    assert isinstance(task, GenerateTask)
    prefix = b""
    for token in prompt:
        prefix = _digest(prefix, token)
    output: list[int] = []
    follower = None if task.grammar is None else Follower(task.grammar, task.stop_token_ids)
    while True:
        allowed = None if follower is None else follower.allowed()
        token = draw_token(prefix, task.sampling, child, len(output), vocab_size, allowed)
        output.append(token)
        prefix = _digest(prefix, token)
        if token in task.eos_token_ids:
            return SoloAnswer(output, FinishReason.STOP, None)
        if token in task.stop_token_ids:
            return SoloAnswer(output, FinishReason.STOP, token)
        if follower is not None and follower.take(token):
            return SoloAnswer(output, FinishReason.STOP, None)
        if len(output) == task.max_tokens or len(prompt) + len(output) == max_model_len:
            return SoloAnswer(output, FinishReason.LENGTH, None)


def _digest(before: bytes, token: int) -> bytes:
    return hashlib.blake2b(before + struct.pack("<q", token), digest_size=12).digest()
