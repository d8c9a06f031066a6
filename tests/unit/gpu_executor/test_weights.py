from __future__ import annotations

import dataclasses
import functools
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.formats.checkpoint_tensor import CheckpointTensor
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.layers.weight_target import WeightTarget
from pagewire.gpu_executor.models.base import Model
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.weights import LoadProgress, load_weights
from pagewire.ipc.errors import ConfigError, MachineError
from pagewire.ipc.sampling_params import Sampling
from tests.support.runner import Row, RunnerDriver, make_runner
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf

Tensors = dict[str, torch.Tensor]


def load(path: Path) -> None:
    """Build and load what lies at `path`."""
    config = load_model_config(path)
    model = build_model(config, select_ops("reference"), dtype=torch.float32, device=torch.device("cpu"))
    load_weights(model, config)


def changed(tmp_path: Path, change: Callable[[Tensors], object], *, tied: bool = False) -> Path:
    """Return a tiny checkpoint with `change` applied to its tensors."""
    directory = shutil.copytree(tiny_checkpoint("llama", tie_word_embeddings=tied), tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")
    return directory


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    path = changed(tmp_path, lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.weight"))
    with pytest.raises(ConfigError, match=r"lacks model\.layers\.1\.self_attn\.k_proj\.weight"):
        load(path)


def test_many_missing_tensors_are_counted(tmp_path: Path) -> None:
    path = changed(tmp_path, lambda tensors: [tensors.pop(name) for name in list(tensors)[:9]])
    with pytest.raises(ConfigError, match="and 4 more"):
        load(path)


@pytest.mark.parametrize("name", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.k_scale"])
def test_tensor_without_a_place_is_named(tmp_path: Path, name: str) -> None:
    path = changed(tmp_path, lambda tensors: tensors.update({name: torch.zeros(4)}))
    with pytest.raises(ConfigError, match=f"{name}.*no such tensor"):
        load(path)


def test_wrong_shape_names_the_tensor_and_both_shapes(tmp_path: Path) -> None:
    path = changed(tmp_path, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(65)}))
    with pytest.raises(ConfigError, match=r"model\.norm\.weight.*\[65\].*\[64\]"):
        load(path)


def test_what_the_configuration_says_already_may_be_stored_too(tmp_path: Path) -> None:
    redundant = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8),
        "lm_head.weight": torch.zeros(512, 64),
    }
    load(changed(tmp_path, lambda tensors: tensors.update(redundant), tied=True))


def test_untied_checkpoint_needs_its_output_layer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lacks lm_head\.weight"):
        load(changed(tmp_path, lambda tensors: tensors.pop("lm_head.weight")))


def test_values_come_from_the_shards_that_the_index_names(tmp_path: Path) -> None:
    source = tiny_checkpoint("llama", num_shards=2)
    directory = shutil.copytree(source, tmp_path / "model")
    shards = sorted(directory.glob("model-*.safetensors"))
    whole = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
    stale = {name: torch.full_like(tensor, 9.0) for name, tensor in whole.items()}
    for shard in shards:  # each tensor also lies in the shard that the index doesn't name for it
        save_file(stale | load_file(shard), shard)
    save_file(stale, directory / "consolidated.safetensors")
    reports = []
    for path in (source, directory):
        row = Row(1, [5, 6, 7], Sampling(temperature=0.0, num_logprobs=5), [0, 1])
        RunnerDriver(make_runner(path)).run([row], num_tokens=4)
        reports.append(row.report)
    assert reports[0] == reports[1]


def test_nothing_is_read_from_a_checkpoint_that_is_refused_or_too_large(tmp_path: Path) -> None:
    reads: list[str] = []
    sizes: list[int] = []

    class Refused(Exception):
        pass

    def refuse(num_bytes: int) -> None:
        sizes.append(num_bytes)
        raise Refused

    path = changed(tmp_path, lambda tensors: tensors.pop("model.norm.weight"))
    for checkpoint, error in ((path, ConfigError), (tiny_checkpoint("llama"), Refused)):
        config = load_model_config(checkpoint)
        model = build_model(config, select_ops("reference"), dtype=torch.float16, device=torch.device("cpu"))
        with pytest.raises(error):
            load_weights(RecordingModel(model, reads), config, check_size=refuse)
    assert not reads
    stored = load_file(tiny_checkpoint("llama") / "model.safetensors")
    assert sizes == [2 * sum(tensor.numel() for tensor in stored.values())]


class RecordingModel:
    """A model that notes which of its tensors are loaded, or fails to load them."""

    def __init__(self, model: Model, reads: list[str], failure: Exception | None = None) -> None:
        self._model = model
        self._reads = reads
        self._failure = failure

    def weight_targets(self) -> Iterator[WeightTarget]:
        for target in self._model.weight_targets():
            yield dataclasses.replace(target, load=functools.partial(self._load, target.name))

    def finish_loading(self) -> None:
        self._model.finish_loading()

    def _load(self, name: str, tensor: CheckpointTensor) -> None:
        self._reads.append(name)
        if self._failure is not None:
            raise self._failure


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (MemoryError(), MachineError),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), MachineError),
        (RuntimeError("shapes differ"), RuntimeError),
    ],
)
def test_out_of_memory_is_the_machines_error_and_another_one_is_a_bug(
    failure: Exception, expected: type[Exception]
) -> None:
    config = load_model_config(tiny_gguf("llama").path)
    model = build_model(config, select_ops("reference"), dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(expected) as caught:
        load_weights(RecordingModel(model, [], failure), config)
    assert expected is RuntimeError or "free memory" in str(caught.value)


def test_long_load_says_once_a_second_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    progress = LoadProgress(4_000_000_000, clock=lambda: now)
    with caplog.at_level(logging.INFO):
        for seconds, gigabytes in ((0.5, 1.0), (0.4, 0.5), (0.1, 0.1), (0.9, 1.4), (0.1, 1.0)):
            now += seconds
            progress.add(int(gigabytes * 1e9))
    assert [record.getMessage() for record in caplog.records] == [
        "loading weights: 40 % of 4.0 GB",
        "loading weights: 100 % of 4.0 GB",
    ]


def test_gguf_tensor_that_the_configuration_has_no_place_for_is_named() -> None:
    config = load_model_config(tiny_gguf("qwen2").path)
    plain = msgspec.structs.replace(config, architecture="LlamaForCausalLM", qkv_bias=False)
    model = build_model(plain, select_ops("reference"), dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"blk\.0\.attn_[qkv]\.bias.*no such tensor"):
        load_weights(model, plain)
