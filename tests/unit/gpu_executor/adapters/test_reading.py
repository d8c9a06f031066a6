from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagewire.gpu_executor.adapters import reading
from pagewire.gpu_executor.kernels.layouts import DenseWeight
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.ipc.adapters import Adapter
from pagewire.ipc.errors import ConfigError, ErrorInfo
from tests.support.adapted_model import AdaptedModel
from tests.support.tiny_model import tiny_checkpoint
from tools.tiny_model.lora_writer import ALL_MODULES, write_adapter
from tools.tiny_model.spec import Family, TinyModelSpec

Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"


def make(family: Family = "llama", max_rank: int = 16) -> AdaptedModel:
    return AdaptedModel(tiny_checkpoint(family), select_ops("reference"), max_rank=max_rank)


def load(model: AdaptedModel, directory: Path) -> None:
    model.store.load(Adapter(name="mine", load_id=1, path=str(directory)))


def edited(directory: Path, edit: Callable[[dict[str, Tensor]], object]) -> Path:
    write_adapter(TinyModelSpec(), directory)
    tensors = load_file(directory / "adapter_model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda tensors: tensors.pop(f"{Q_PROJ}.lora_B.weight"), r"lacks .*q_proj\.lora_B"),
        (lambda tensors: tensors.update({"base_model.model.lm_head.lora_A.weight": torch.ones(4, 64)}), "lm_head"),
        (lambda tensors: tensors.update({f"{Q_PROJ}.bias": torch.ones(64)}), "is no matrix of LoRA"),
        (lambda tensors: tensors.update({f"{Q_PROJ}.lora_A.weight": torch.ones(4, 63)}), r"\[4, 63\]"),
        (lambda tensors: tensors.update({f"{Q_PROJ}.lora_A.weight": torch.ones(5, 64)}), r"\[5, 64\]"),
        (dict.clear, "holds no tensor"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, edit: Callable[[dict[str, Tensor]], object], named: str
) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        load(make(), edited(tmp_path, edit))
    assert "mine" in caught.value.message


def test_a_rank_above_the_limit_names_both(tmp_path: Path) -> None:
    write_adapter(TinyModelSpec(), tmp_path, rank=17)
    with pytest.raises(ConfigError, match=r"rank 17, above --max-lora-rank 16"):
        load(make(), tmp_path)


def test_experts_can_not_be_changed(tmp_path: Path) -> None:
    write_adapter(TinyModelSpec(family="mixtral"), tmp_path, modules=("q_proj",))
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    tensors["base_model.model.model.layers.0.block_sparse_moe.experts.0.w1.lora_A.weight"] = torch.ones(4, 64)
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=r"experts\.0\.w1, which adapters can't change"):
        load(make("mixtral"), tmp_path)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    write_adapter(TinyModelSpec(), tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ConfigError, match="pickled"):
        load(make(), tmp_path)


def test_an_adapter_takes_no_more_than_is_kept_free_for_it(tmp_path: Path) -> None:
    model = make(max_rank=16)
    write_adapter(TinyModelSpec(), tmp_path, rank=16, modules=ALL_MODULES)
    load(model, tmp_path)
    (weights,) = model.store._weights.values()  # its sizes are told to nobody else
    changes = [change for layer in weights.layers for change in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    sizes = [part.out_features * part.in_features for change in changes if change for part in (change.a, change.b)]
    assert 4 * sum(sizes) == model.store.most_bytes()


def test_a_load_that_fails_leaves_the_others(tmp_path: Path) -> None:
    model = make()
    write_adapter(TinyModelSpec(), tmp_path / "a")
    load(model, tmp_path / "a")
    error = model.store.try_load(Adapter(name="b", load_id=2, path=str(tmp_path / "b")))
    assert error is not None
    assert (error.kind, error.param) == ("InvalidRequest", "lora_path")
    assert 1 in model.store
    assert 2 not in model.store
    model.store.unload(1)
    assert 1 not in model.store


def test_a_path_that_the_system_refuses_is_an_error_of_the_load() -> None:
    error = make().store.try_load(Adapter(name="b", load_id=2, path="a" * 5000))
    assert error is not None
    assert "File name too long" in error.message
    assert len(error.message) < 200


def test_other_files_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    model = make()
    write_adapter(TinyModelSpec(), tmp_path, seed=1)
    digest = model.store.load(Adapter(name="mine", load_id=1, path=str(tmp_path)))
    assert model.store.load(Adapter(name="mine", load_id=2, path=str(tmp_path), digest=digest)) == digest
    write_adapter(TinyModelSpec(), tmp_path, seed=2)
    failure = model.store.try_load(Adapter(name="mine", load_id=3, path=str(tmp_path), digest=digest))
    assert isinstance(failure, ErrorInfo)
    assert "not the ones that it was loaded from" in failure.message
    assert 3 not in model.store


def test_files_that_change_while_they_are_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_adapter(TinyModelSpec(), tmp_path)

    def replace(directory: Path) -> str:
        write_adapter(TinyModelSpec(), directory, rank=5)
        return "digest"

    monkeypatch.setattr(reading, "digest_adapter", replace)
    with pytest.raises(ConfigError, match="written to while they were read"):
        load(make(), tmp_path)


def test_what_is_prepared_on_the_thread_of_the_steps_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make().store._reader
    write_adapter(TinyModelSpec(), tmp_path)
    at_once = reader.put_in_place(reader.read(tmp_path))
    prepared: list[DenseWeight] = []

    def prepare(_self: ReferenceOps, weight: DenseWeight) -> DenseWeight:
        prepared.append(weight)
        return weight

    monkeypatch.setattr(ReferenceOps, "prepare_weight", prepare)
    monkeypatch.setattr(reading.AdapterReader, "_prepares_at_once", False)
    read = reader.read(tmp_path)
    assert prepared == []
    later = reader.put_in_place(read)
    assert len(prepared) == 2 * 4 * len(later.layers)
    for one, other in zip(at_once.layers, later.layers, strict=True):
        for name in ("qkv", "output", "gate_up", "down"):
            for matrix in ("a", "b"):
                assert torch.equal(
                    getattr(getattr(one, name), matrix).weight, getattr(getattr(other, name), matrix).weight
                )
