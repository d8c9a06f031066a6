"""An engine over a real (tiny) model, without processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pagewire.gpu_executor.core_inbox import StepMasks
from pagewire.gpu_executor.model_runner import ModelRunner
from pagewire.gpu_executor.speculation.proposer import Proposer
from pagewire.ipc.outputs import TokenLogprobs
from pagewire.ipc.steps import ExecuteStep, StepResult
from tests.support.builders import build_driver
from tests.support.engine_driver import EngineDriver, Transcript
from tests.support.runner import BLOCK_SIZE, make_runner
from tests.support.tiny_model import tiny_checkpoint

Answer = tuple[list[int], list[TokenLogprobs], list[TokenLogprobs]]


class ModelDriver(EngineDriver):
    """Drives a model, whose answers nobody knows beforehand: tests compare one run with another."""

    def check_answers(self, transcript: Transcript) -> None:
        """See `EngineDriver`."""

    def _run_step(self, step: ExecuteStep, masks: dict[int, bytes]) -> StepResult:
        self.runner.mask_source = GivenMasks(masks)
        return self.executor.execute(step)

    @property
    def runner(self) -> ModelRunner:
        """What runs the steps."""
        return self.executor  # type: ignore[return-value]


@dataclass(frozen=True)
class GivenMasks:
    """Masks that are there when they are asked for."""

    masks: StepMasks

    def wait_for_masks(self, step_id: int) -> StepMasks:
        """See `MaskSource`."""
        return self.masks


def build_model_driver(
    *,
    num_blocks: int = 64,
    max_model_len: int = 44,
    vocab_size: int = 128,
    checkpoint: Path | None = None,
    kernels: str = "reference",
    proposer: Proposer | None = None,
    **options: object,
) -> ModelDriver:
    """Return an engine over a runner; `options` are those of `build_driver`. None: the checkpoint is a llama's."""
    driver = build_driver(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        **options,  # type: ignore[arg-type]
    )
    # Its whole pool is NaN: whatever reads a slot that was not written for it shows.
    runner = make_runner(checkpoint or tiny_checkpoint(), num_blocks=num_blocks, kernels=kernels, proposer=proposer)
    return ModelDriver(driver.engine, runner, max_model_len=max_model_len)  # type: ignore[arg-type]


def answers(transcript: Transcript) -> list[Answer]:
    """Return tokens, logprobs and prompt logprobs of each child: equal answers are equal bits."""
    assert transcript.start is not None
    assert transcript.end is not None
    assert transcript.end.error is None
    prompt_logprobs = transcript.start.prompt_logprobs
    return [(child.token_ids, child.logprobs, prompt_logprobs) for child in transcript.children]
