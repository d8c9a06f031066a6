"""Executors that load a draft model beside the served one: alone, and dividing both between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from pagewire.gpu_executor import loaded_model
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.loading import StartupClock, load_executor
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.mesh import Mesh
from pagewire.ipc.requests import AddRequest, GenerateTask, TokenInputs
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.speculative_config import SpeculativeConfig
from pagewire.ipc.steps import ExecuteStep, LoadModel, StepResult
from tests.support.builders import build_driver
from tests.support.model_driver import Answer, ModelDriver, answers
from tests.support.rank_driver import RankThreads, config_of, load_messages
from tests.support.tiny_model import tiny_checkpoint

SMALL = {"num_layers": 1, "hidden_size": 32, "head_dim": 8, "num_kv_heads": 4}


class Executors:
    """All ranks as an engine's one executor."""

    vocab_size = 128

    def __init__(self, ranks: RankThreads) -> None:
        self._ranks = ranks

    def execute(self, step: ExecuteStep) -> StepResult:
        (result,) = self._ranks.answers(step)  # of the output rank alone
        assert isinstance(result, StepResult), result
        return result


@contextmanager
def engine(draft: Path | None, mesh: Mesh, kernels: str, folder: Path) -> Iterator[ModelDriver]:
    config = config_of(tiny_checkpoint(), mesh, kernels=kernels)
    if draft is not None:
        speculative = SpeculativeConfig(speculative_model=str(draft), num_speculative_tokens=3)
        config = msgspec.structs.replace(config, speculative=speculative)
    ranks = RankThreads(load_messages(config, folder / f"ranks-{draft is None}", num_blocks=40))
    try:
        driver = build_driver(
            num_blocks=40,
            block_size=4,
            vocab_size=128,
            max_model_len=44,
            pp=mesh.pp,
            max_drafts=0 if draft is None else 3,
            has_draft_model=draft is not None,
        )
        yield ModelDriver(driver.engine, Executors(ranks), max_model_len=44, pp=mesh.pp)  # type: ignore[arg-type]
    finally:
        ranks.close()


def run(driver: ModelDriver) -> list[list[Answer]]:
    for request_id, sampling in enumerate((Sampling(temperature=0.0), Sampling(temperature=1.0, seed=7)), start=1):
        driver.add(
            AddRequest(
                request_id=request_id,
                inputs=TokenInputs(prompt_token_ids=[5, 6, 7, 8, 9, 10]),
                task=GenerateTask(
                    sampling=msgspec.structs.replace(sampling, num_logprobs=1), n=request_id, max_tokens=8
                ),
            )
        )
    driver.run()
    return [answers(driver[request_id]) for request_id in (1, 2)]


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
@pytest.mark.parametrize("mesh", [Mesh(), Mesh(tp=2), Mesh(pp=2)], ids=str)
@pytest.mark.parametrize("draft", [{}, SMALL], ids=["itself", "a smaller one"])
def test_ranks_that_guess_give_the_answers_of_ranks_that_do_not(
    draft: dict[str, int], mesh: Mesh, kernels: str, tmp_path: Path
) -> None:
    with engine(None, mesh, kernels, tmp_path) as without:
        expected = run(without)
    with engine(tiny_checkpoint("llama", **draft), mesh, kernels, tmp_path) as driver:
        assert run(driver) == expected
        stats = driver.engine.stats
    assert stats.num_draft_tokens > 0
    if not draft:
        assert sum(stats.accepted_at) == stats.num_draft_tokens


def load(draft: Path, **options: object) -> str:
    """Return the memory line of a load with a draft model."""
    config = config_of(tiny_checkpoint(), Mesh(), **options)
    speculative = SpeculativeConfig(speculative_model=str(draft))
    config = msgspec.structs.replace(config, speculative=speculative)
    return load_executor(LoadModel(executor_epoch=1, config=config), HostLimits(), StartupClock()).ready.memory


def test_the_memory_line_counts_the_draft_model_in() -> None:
    described = load(tiny_checkpoint())
    assert "at 0.5 KiB a token" in described  # 2 models x 2 layers x 2 x 2 heads x 16 channels of float16
    assert described.endswith("of that, the draft model has 0.00 GiB of weights and 0.2 KiB a token")


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ({"vocab_size": 256}, "another vocabulary, of 256 tokens, than .* with 500"),
        ({"max_position": 256}, "contexts of 256 tokens, and .* is served with 512; give --max-model-len 256"),
    ],
)
def test_a_model_that_can_not_guess_is_refused(draft: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tiny_checkpoint("llama", **draft))


def test_a_shorter_context_can_be_served() -> None:
    load(tiny_checkpoint(max_position=256), max_model_len=256)


def test_weights_of_both_models_must_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(loaded_model, "check_weights_fit", lambda num_bytes, *_: sizes.append(num_bytes))
    load(tiny_checkpoint())
    assert sizes[1] == 2 * sizes[0]
