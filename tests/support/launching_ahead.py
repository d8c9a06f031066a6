"""A real runner whose steps are computed on a deferred device, while others are launched."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from pagewire.gpu_executor.batch.forward_metadata import ForwardMetadata
from pagewire.gpu_executor.batch.graphed_forward import GraphedForward
from pagewire.gpu_executor.batch.input_batch import InputBatch
from pagewire.gpu_executor.batch.row_table import UNKNOWN_TOKEN
from pagewire.gpu_executor.kv_cache_spec import LayerKVCache
from pagewire.gpu_executor.model_runner import ModelRunner
from pagewire.gpu_executor.models.base import Model
from pagewire.gpu_executor.sampling.draw import Draw, Drawn
from pagewire.gpu_executor.sampling.pending import PendingDraws
from pagewire.gpu_executor.sampling.row_edits import TokenHistory
from pagewire.gpu_executor.sampling.sampler import Sampler
from pagewire.gpu_executor.sampling.token_masks import FetchMasks
from pagewire.gpu_executor.speculation.proposer import Proposer
from pagewire.gpu_executor.step_in_flight import StepInFlight
from pagewire.ipc.outputs import TokenLogprobs
from pagewire.ipc.steps import ExecuteStep, ScheduledRow, StepResult
from tests.support.deferred_device import DeferredDevice
from tests.support.model_driver import ModelDriver, build_model_driver
from tests.support.runner import Row, RunnerDriver, make_runner
from tests.support.tiny_model import tiny_checkpoint

MOST_GUESSES = 8  # that rows want


class DeferredModel:
    """A model whose forward is one piece of the device's work: the reference kernels look at values as they go."""

    def __init__(self, model: Model, device: DeferredDevice) -> None:
        self._model = model
        self._device = device

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def forward(
        self,
        input_ids: Tensor,
        metadata: ForwardMetadata,
        kv_caches: Sequence[LayerKVCache],
        stream: Tensor | None = None,
    ) -> Tensor:
        with _disable_current_modes():
            hidden = torch.full((input_ids.shape[0], self._hidden_size), float("nan"))

        def compute() -> None:
            hidden.copy_(self._model.forward(input_ids, metadata, kv_caches, stream))

        self._device.launch(compute, "forward", seconds=1.0)
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        with _disable_current_modes():
            logits = torch.full((hidden.shape[0], self._vocab_size), float("nan"))
        self._device.launch(lambda: logits.copy_(self._model.compute_logits(hidden)), "logits")
        return logits

    @property
    def _hidden_size(self) -> int:
        return self._model.norm.weight.shape[0]  # type: ignore[attr-defined]

    @property
    def _vocab_size(self) -> int:
        return self._model.compute_logits(torch.zeros(1, self._hidden_size)).shape[1]


class DeferredDraws(PendingDraws):
    """Draws that are made when the device comes to them."""

    def __init__(self, device: DeferredDevice, num_rows: int) -> None:
        with _disable_current_modes():
            self.token_ids = torch.full((num_rows,), -(2**62), dtype=torch.int64)
        self.drawn: list[Drawn] = []
        self._device = device

    def finish_launch(self) -> None:
        """Note where in the device's work they end."""
        self._end = self._device.mark()

    def collect(self) -> list[Drawn]:
        self._end.wait()
        return self.drawn


class DeferredSampler:
    """A sampler that is at work when the device comes to it; what the host knows is read when the draws begin."""

    def __init__(self, sampler: Sampler, device: DeferredDevice) -> None:
        self._sampler = sampler
        self._device = device

    @property
    def vocab_size(self) -> int:
        return self._sampler.vocab_size

    def begin(
        self,
        model: DeferredModel,
        hidden: Tensor,
        draws: Sequence[Draw],
        logits: Tensor | None = None,
        fetch_masks: FetchMasks | None = None,
    ) -> PendingDraws:
        assert logits is None
        masks = None if fetch_masks is None else fetch_masks()
        pending = DeferredDraws(self._device, len(draws))
        as_launched = [_frozen(draw) for draw in draws]

        def draw() -> None:
            with_tokens = [_with_kept_tokens(draw) for draw in as_launched]
            pending.drawn = self._sampler.begin(
                model._model, hidden, with_tokens, None, None if masks is None else lambda: masks
            ).collect()
            tokens = [0 if drawn.error is not None else drawn.token_ids[0] for drawn in pending.drawn]
            pending.token_ids.copy_(torch.tensor(tokens))

        self._device.launch(draw, "draw")
        pending.finish_launch()
        return pending

    def prompt_logprobs(self, logits: Tensor, next_token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
        self._device.mark().wait()
        with _disable_current_modes():
            return self._sampler.prompt_logprobs(logits, next_token_ids, num_top)


def _frozen(draw: Draw) -> Draw:
    if draw.history is None:
        return draw
    token_ids = draw.history.token_ids.copy()
    if draw.row_sampling.reads_token_ids:
        assert UNKNOWN_TOKEN not in token_ids, "a draw that reads tokens begins before they are known"
    return draw._replace(history=TokenHistory(token_ids, draw.history.num_prompt_tokens))


def _with_kept_tokens(draw: Draw) -> Draw:
    """Take the tokens from the device, which knows all of them when it comes to the draw."""
    if draw.kept is None:
        assert not draw.row_sampling.is_penalized, "the device keeps the tokens of penalized rows"
        return draw
    assert draw.history is not None
    start, num_tokens = draw.kept.start, len(draw.history.token_ids)
    kept = draw.kept.token_ids[start : start + num_tokens].numpy().copy()
    return draw._replace(history=TokenHistory(kept, draw.history.num_prompt_tokens))


class AheadRunner:
    """Launches steps on a deferred device.

    Attributes:
        device: computes when it is waited for, or told to.
        runner: does the launching.
    """

    def __init__(
        self,
        checkpoint: Path,
        *,
        num_blocks: int = 64,
        graphs: GraphedForward | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        self.device = DeferredDevice()
        plain = make_runner(checkpoint, num_blocks=num_blocks)
        assert isinstance(plain.sampler, Sampler)
        self.runner = ModelRunner(
            DeferredModel(plain.model, self.device),  # type: ignore[arg-type]
            plain.kv_cache,
            InputBatch(2, plain.batch.limits, self.device.torch_device, self.device),
            DeferredSampler(plain.sampler, self.device),  # type: ignore[arg-type]
            graphs,
            proposer=proposer,
            clock=lambda: self.device.host_s,
        )

    def launch(self, step: ExecuteStep) -> StepInFlight:
        """Launch a step."""
        with self.device.launching():
            return self.runner.launch(step)


class AheadDriver:
    """Launches steps of some rows before those before them are finished; see `RunnerDriver`."""

    def __init__(self, runner: AheadRunner) -> None:
        self.runner = runner
        self.device = runner.device
        self.in_flight: deque[tuple[StepInFlight, list[tuple[Row, ScheduledRow]]]] = deque()
        self._num_steps = 0
        self._num_pending: Counter[int] = Counter()  # by row: tokens that steps in flight draw

    def launch(
        self,
        shares: list[tuple[Row, int]],
        *,
        num_draws: int = 1,
        drafts: Mapping[int, list[int]] | None = None,
        **options: object,
    ) -> StepInFlight:
        """Launch a step that computes so many tokens of each row; a row draws when its last token is among them.

        Drafts are given by row id, and come on top of the tokens.
        """
        self._num_steps += 1
        new_rows, rows = [], []
        for row, num_scheduled in shares:
            num_known = len(row.prompt) + len(row.tokens) + self._num_pending[id(row)]
            if not row.is_held:
                new_rows.append(RunnerDriver.new_row(row, row.prompt + row.tokens))
                row.is_held = True
            draws = num_draws if row.num_computed + num_scheduled == num_known else 0
            guesses = (drafts or {}).get(row.row_id, [])
            num_tokens = num_scheduled + len(guesses)
            num_wanted = MOST_GUESSES if draws == 1 else 0
            rows.append(
                ScheduledRow(
                    row.row_id,
                    row.num_computed,
                    num_tokens,
                    draws,
                    draft_token_ids=guesses,
                    num_wanted_drafts=num_wanted,
                )
            )
            row.num_computed += num_scheduled
            self._num_pending[id(row)] += draws > 0
        step = ExecuteStep(
            executor_epoch=1,
            step_id=self._num_steps,
            new_rows=new_rows,
            rows=rows,
            **options,  # type: ignore[arg-type]
        )
        launched = self.runner.launch(step)
        self.in_flight.append(
            (launched, [(row, share) for (row, _), share in zip(shares, rows, strict=True) if share.num_draws])
        )
        return launched

    def finish(self) -> StepResult:
        """Finish the oldest step and give its results to its rows."""
        launched, drawing = self.in_flight.popleft()
        result = launched.finish()
        by_id = {of_row.row_id: of_row for of_row in result.rows}
        for row, share in drawing:
            self._num_pending[id(row)] -= 1
            of_row = by_id[row.row_id]
            row.results.append(of_row)
            row.tokens += of_row.token_ids[: 1 + len(share.draft_token_ids)]
            if share.draft_token_ids:
                row.num_computed += len(of_row.token_ids) - 1
        return result

    def decode(self, rows: list[Row], *, num_tokens: int, depth: int = 2) -> None:
        """Draw so many more tokens of each row, whose prompts are computed, with up to `depth` steps in flight."""
        for _ in range(num_tokens):
            while len(self.in_flight) >= depth:
                self.finish()
            self.launch([(row, 1) for row in rows])
        while self.in_flight:
            self.finish()


class AheadModelDriver(ModelDriver):
    """An engine whose steps are finished when their results are received, and not before."""

    @property
    def runner(self) -> ModelRunner:
        """See `ModelDriver`."""
        return self.executor.runner  # type: ignore[attr-defined]

    def receive(self) -> None:
        """See `EngineDriver`."""
        launched: StepInFlight = self.results.popleft()  # type: ignore[assignment]
        self.results.appendleft(launched.finish())
        super().receive()


def build_ahead_driver(
    *, num_blocks: int = 64, max_model_len: int = 44, proposer: Proposer | None = None, **options: object
) -> AheadModelDriver:
    """Return an engine over a runner that launches ahead; `options` are those of `build_driver`."""
    driver = build_model_driver(num_blocks=num_blocks, max_model_len=max_model_len, is_async=True, **options)
    runner = AheadRunner(tiny_checkpoint(), num_blocks=num_blocks, proposer=proposer)
    return AheadModelDriver(driver.engine, _LaunchingExecutor(runner), max_model_len=max_model_len)  # type: ignore[arg-type]


class _LaunchingExecutor:
    """Takes the place of an executor: gives steps in flight for results."""

    def __init__(self, runner: AheadRunner) -> None:
        self.device = runner.device
        self.runner = runner.runner
        self.execute = runner.launch
