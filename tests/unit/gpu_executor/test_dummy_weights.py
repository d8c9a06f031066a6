"""--load-format dummy: a model of the right shapes from its config.json alone, that runs and stays finite."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.loading import LoadedExecutor, StartupClock, load_executor
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.weights import load_weights
from pagewire.ipc.config import EngineConfig, ModelOptions, SchedulerConfig
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import LoadModel
from tests.support.paged import Chunk, nan_filled_cache, paged_step
from tests.support.runner import Row, RunnerDriver
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf
from tools.tiny_model.spec import Family


def configuration_alone(tmp_path: Path, family: Family, **options: object) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    shutil.copy(tiny_checkpoint(family, **options) / "config.json", directory)
    return directory


def load(path: Path, **options: object) -> LoadedExecutor:
    model = ModelOptions(model_path=str(path), load_format="dummy", **options)  # type: ignore[arg-type]
    config = EngineConfig(model=model, scheduler=SchedulerConfig(max_num_seqs=2))
    return load_executor(LoadModel(executor_epoch=1, config=config), HostLimits(), StartupClock())


@pytest.mark.parametrize(("family", "kernels"), [("llama", "reference"), ("qwen2", "reference"), ("qwen3", "auto")])
def test_a_configuration_alone_makes_a_model_that_answers(tmp_path: Path, family: Family, kernels: str) -> None:
    loaded = load(configuration_alone(tmp_path, family), kernels=kernels)
    row = Row(1, [5, 6, 7], Sampling(temperature=0.0, num_logprobs=3), [0, 1])
    driver = RunnerDriver(loaded.runner)
    driver.step([(row, 3)])
    for _ in range(4):
        driver.step([(row, 1)])
    assert len(row.tokens) == 5
    assert all(result.error is None for result in row.results)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_of_many_layers_are_finite_in_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    config = load_model_config(configuration_alone(tmp_path, "llama", num_layers=40))
    model = build_model(config, select_ops("reference"), dtype=dtype, device=torch.device("cpu"))
    load_weights(model, config, load_format="dummy")
    caches = [nan_filled_cache(spec, 1) for spec in model.kv_cache_specs()]
    with torch.inference_mode():
        hidden = model.forward(torch.arange(8), paged_step([Chunk([0], 0, 8)]), caches)
        logits = model.compute_logits(hidden)
    assert logits.isfinite().all()
    assert 0.3 < logits.std() < 3


def test_two_loads_give_the_same_weights(tmp_path: Path) -> None:
    path = configuration_alone(tmp_path, "llama")
    reports = []
    for _ in range(2):
        row = Row(1, [5, 6, 7], Sampling(temperature=1.0, seed=3, num_logprobs=3), [0])
        driver = RunnerDriver(load(path, kernels="reference").runner)
        driver.step([(row, 3)])
        driver.step([(row, 1)])
        reports.append(row.report)
    assert reports[0] == reports[1]


def test_packed_weights_have_no_random_form() -> None:
    with pytest.raises(ConfigError, match=r"--load-format dummy: .*packed weights.*leave the flag out"):
        load(tiny_gguf("llama", "Q8_0").path)
