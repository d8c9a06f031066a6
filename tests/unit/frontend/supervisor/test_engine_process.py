"""What a model can't do is refused before any process starts."""

from __future__ import annotations

from typing import Any

import pytest

from pagewire.frontend.supervisor.engine_process import prepare_engine, start_cores
from pagewire.ipc.config import EngineConfig, ModelOptions
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.parallel_config import ParallelConfig
from tests.support.tiny_model import tiny_checkpoint


def config_of(*, max_model_len: int | None = None, **parallel: Any) -> EngineConfig:
    """A tiny llama: 4 heads, 2 KV heads, 2 layers; Any: fields of `ParallelConfig`."""
    model = ModelOptions(model=str(tiny_checkpoint()), max_model_len=max_model_len)
    return EngineConfig(model=model, parallel=ParallelConfig(**parallel))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tensor_parallel_size": 3}, "--tp 3.*4 heads.*possible are 1, 2, 4[.]"),
        ({"pipeline_parallel_size": 3}, "--pp 3.*2 layers; give at most as many"),
        ({"tensor_parallel_size": 2, "enable_expert_parallel": True}, "--enable-expert-parallel.*no experts"),
    ],
)
def test_model_that_cannot_be_divided_is_refused_with_what_can_be(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare_engine(config_of(**sizes))


def test_model_that_can_be_divided_is_found_on_disk() -> None:
    prepared = prepare_engine(config_of(tensor_parallel_size=4, pipeline_parallel_size=2))
    assert prepared.model.model_path == str(tiny_checkpoint())


def test_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--max-model-len 513.*512"):
        prepare_engine(config_of(max_model_len=513))


def test_host_that_only_computes_has_no_engine() -> None:
    config = config_of(tensor_parallel_size=2, nnodes=2, node_rank=1)
    with pytest.raises(ConfigError, match=r"--node-rank 1 has no engine of its own.*pagewire serve MODEL"):
        start_cores(config)
