"""Mixtures of experts over ranks that divide every expert, or the experts; in a batch, packed, on each kind of kernels.

That they are what the families' papers say is shown in test_transformers.py.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing, load_library
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.quantize_checkpoint import main
from pagewire.ipc.errors import ConfigError
from tests.support.batch_invariance import assert_bits_are_a_requests_own
from tests.support.model_outputs import error_of, greedy_ids, logits_of
from tests.support.quantized_writers import awq, gptq, write_quantized
from tests.support.sharded_model import ShardedModel
from tests.support.stored_layers import StoredLayer
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf

# Experts that 4 ranks can't divide evenly, more of them than tokens choose; a dense layer among the mixtures.
FAMILIES: dict[str, dict[str, Any]] = {  # Any: fields of TinyModelSpec
    "mixtral": {"num_layers": 2, "num_experts": 6, "num_chosen_experts": 2},
    "qwen3_moe": {"num_layers": 3, "dense_layers": (1,), "num_experts": 9, "num_chosen_experts": 3},
}
LAYOUTS = [(2, 1), (4, 1), (2, 2)]  # tp, pp


def need_compiled_kernels() -> None:
    try:
        load_library()
    except LibraryMissing as exc:
        pytest.skip(str(exc))


def checkpoint(family: Any, **options: Any) -> Path:
    return tiny_checkpoint(family, **FAMILIES[family], **options)


@pytest.mark.parametrize("divides_experts", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_layout_gives_the_logits_and_greedy_tokens_of_the_whole_model(family: str, divides_experts: bool) -> None:
    path = checkpoint(family)
    whole = ShardedModel(path)
    expected, expected_ids = logits_of(whole), greedy_ids(whole)
    assert expected.std() > 0.05
    for tp, pp in LAYOUTS:
        model = ShardedModel(path, tp=tp, pp=pp, divides_experts=divides_experts)
        assert error_of(logits_of(model), expected) < 1e-5, (tp, pp)
        assert greedy_ids(model) == expected_ids, (tp, pp)


@pytest.mark.parametrize(
    ("tp", "divides_experts", "kernels", "dtype"),
    [
        (1, False, "reference", torch.float32),
        (2, False, "reference", torch.bfloat16),
        (4, True, "reference", torch.float32),
        (1, False, "cpu", torch.float32),
        (2, True, "cpu", torch.float32),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokens_bits_are_its_own_within_a_layout(
    family: str, tp: int, divides_experts: bool, kernels: str, dtype: torch.dtype
) -> None:
    if kernels == "cpu":
        need_compiled_kernels()
    model = ShardedModel(
        checkpoint(family), tp=tp, make_ops=partial(select_ops, kernels), dtype=dtype, divides_experts=divides_experts
    )
    assert_bits_are_a_requests_own(model, torch.float16)


def test_ranks_that_divide_experts_hold_whole_ones() -> None:
    path = checkpoint("mixtral")
    of_experts = sum(t.nbytes for name, t in load_file(path / "model.safetensors").items() if ".experts." in name)
    of_each = of_experts // 6
    (by_channel,) = ShardedModel(path, tp=4).loaded_bytes
    (by_expert,) = ShardedModel(path, tp=4, divides_experts=True).loaded_bytes
    assert len(set(by_channel)) == 1
    # 2, 2, 1 and 1 of them, where each rank had a quarter of all six.
    assert [mine - by_channel[0] for mine in by_expert] == [of_each // 2] * 2 + [-of_each // 2] * 2


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_kernels_give_the_logits_of_the_reference(family: str) -> None:
    need_compiled_kernels()
    path = checkpoint(family)
    expected = logits_of(ShardedModel(path))
    assert error_of(logits_of(ShardedModel(path, make_ops=partial(select_ops, "cpu"))), expected) < 1e-4
    assert error_of(logits_of(ShardedModel(path, make_ops=partial(select_ops, "cpu"), tp=2, pp=2)), expected) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["awq", "gptq", "gptq, act order"])
def test_packed_experts_are_those_of_their_values(tmp_path: Path, family: str, name: str) -> None:
    source = checkpoint(family, hidden_size=128, head_dim=32, intermediate_size=256)
    stated: dict[str, object] = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}
    if name != "awq":
        stated = {"quant_method": "gptq", "bits": 4, "sym": True, "checkpoint_format": "gptq"}
        stated["desc_act"] = name == "gptq, act order"

    def write(module: str, weight: Tensor) -> StoredLayer | None:
        if module == "lm_head" or module.endswith(".gate"):  # routers stay plain
            return None
        return awq(weight) if name == "awq" else gptq(weight, has_act_order=name == "gptq, act order")

    packed, plain = write_quantized(source, tmp_path, write, {**stated, "group_size": 32})
    expected = logits_of(ShardedModel(plain))
    for tp, divides_experts in ((1, False), (2, False), (2, True)):
        model = ShardedModel(packed, tp=tp, divides_experts=divides_experts)
        assert error_of(logits_of(model), expected) < 1e-4, (tp, divides_experts)


def test_packed_router_is_refused_by_its_name(tmp_path: Path) -> None:
    source = checkpoint("mixtral", hidden_size=128, head_dim=32)
    stated: dict[str, object] = {"quant_method": "gptq", "bits": 4, "sym": True, "checkpoint_format": "gptq"}
    path, _ = write_quantized(
        source, tmp_path, lambda module, weight: None if module == "lm_head" else gptq(weight),
        {**stated, "desc_act": False, "group_size": 32},
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"layers\.0\.block_sparse_moe\.gate"):
        ShardedModel(path)


@pytest.mark.parametrize("quant", ["Q4_K", "Q8_0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_files_of_experts_are_divided(family: Any, quant: str) -> None:
    tiny = tiny_gguf(family, quant, hidden_size=256, head_dim=64, expert_size=256, **FAMILIES[family])
    expected = logits_of(ShardedModel(tiny.reference))
    for tp, divides_experts in ((2, False), (4, True)):
        model = ShardedModel(tiny.path, tp=tp, divides_experts=divides_experts)
        assert error_of(logits_of(model), expected) < 1e-4, (tp, divides_experts)


@pytest.mark.parametrize("options", [["int4"], ["int8"], ["fp8"], ["int4", "--format=gptq"]])
@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoints_that_quantize_wrote_keep_their_routers(tmp_path: Path, family: str, options: list[str]) -> None:
    source = checkpoint(family, dtype="bfloat16", hidden_size=128, head_dim=32, intermediate_size=256)
    packed = tmp_path / "packed"
    assert main(["--to", *options, "--out", str(packed), str(source)]) == 0
    stored, was = load_file(packed / "model.safetensors"), load_file(source / "model.safetensors")
    routers = [name for name in was if name.endswith(".gate.weight")]
    assert len(routers) == 2
    assert all(torch.equal(stored[name], was[name]) for name in routers)
    experts = [name for name in was if ".experts." in name]
    assert not any(name in stored and stored[name].dtype == was[name].dtype for name in experts)
    whole = logits_of(ShardedModel(packed))
    model = ShardedModel(packed, tp=2, divides_experts=True)
    assert error_of(logits_of(model), whole) < 1e-4
