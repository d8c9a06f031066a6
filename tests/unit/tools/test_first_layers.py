"""A model of another one's first layers computes what those layers do."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.checkpoint.loading import load_model_config
from pagewire.ipc.sampling_params import Sampling
from tests.support.runner import Row, RunnerDriver, make_runner
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf
from tools.first_layers import write_first_layers


def tokens_of(checkpoint: Path) -> list[int]:
    row = Row(1, [5, 6, 7], Sampling(temperature=0.0), [1, 2, 3])
    RunnerDriver(make_runner(checkpoint)).run([row], num_tokens=6)
    return row.tokens


def test_a_directory_and_a_file_of_the_same_weights_give_the_same_model(tmp_path: Path) -> None:
    model = tiny_gguf(num_layers=3)
    file = write_first_layers(model.path, 2, tmp_path / "two.gguf")
    directory = write_first_layers(model.reference, 2, tmp_path / "two")
    assert [load_model_config(path).num_layers for path in (file, directory)] == [2, 2]
    assert tokens_of(file) == tokens_of(directory)


def test_all_layers_are_the_model_itself(tmp_path: Path) -> None:
    assert tokens_of(write_first_layers(tiny_checkpoint(), 2, tmp_path / "all")) == tokens_of(tiny_checkpoint())


@pytest.mark.parametrize("num_layers", [0, 3])
def test_layers_that_are_not_there_are_refused(num_layers: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{num_layers} layers of a model that has 2"):
        write_first_layers(tiny_checkpoint(), num_layers, tmp_path / "none")
