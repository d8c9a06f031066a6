"""A model over several ranks gives the logits of the whole one, and within one layout bits that are a token's own.

Ranks are threads, stages hand their stream on by hand; the kernels are the reference unless they are named.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing, load_library
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.kv_scales import KVScales
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.parallel.share import Share
from pagewire.gpu_executor.quantize_checkpoint import main
from pagewire.gpu_executor.weights import load_weights
from pagewire.ipc.errors import ConfigError
from tests.support.batch_invariance import assert_bits_are_a_requests_own
from tests.support.model_outputs import error_of, greedy_ids, logits_of
from tests.support.paged import Chunk, nan_filled_cache, paged_step
from tests.support.quantized_writers import awq, gptq, write_quantized
from tests.support.rank_threads import ThreadedRanks
from tests.support.sharded_model import ShardedModel
from tests.support.shared_ranks import SharedMemoryRanks
from tests.support.stored_layers import StoredLayer
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf

MULTIPLIERS = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.1, "residual_multiplier": 0.3, "logits_scaling": 8.0
}  # fmt: skip
# Three layers are cut unevenly, as are 509 token ids; biases are where a family can have them.
COMMON = {"num_layers": 3, "vocab_size": 509}
CHECKPOINTS: dict[str, tuple[Any, dict[str, Any]]] = {  # Any: a family's name; fields of TinyModelSpec
    "gemma2": ("gemma2", {"sliding_window": 24, "attention_soft_cap": 1.5, "logit_soft_cap": 2.0}),
    "gemma2, tied": ("gemma2", {"sliding_window": 24, "tie_word_embeddings": True}),
    "gemma3": ("gemma3", {"sliding_window": 24, "sliding_window_pattern": 2, "rope_theta": 1e6}),
    "granite": ("granite", {**MULTIPLIERS, "attention_bias": True, "mlp_bias": True}),
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 24}),
    "phi3": ("phi3", {"sliding_window": 24, "partial_rotary_factor": 0.75}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}


class Layout(NamedTuple):
    """So many ranks share each layer, in so many stages."""

    tp: int
    pp: int


# Of 4 ranks, 2 hold the same KV head.
LAYOUTS = [Layout(2, 1), Layout(4, 1), Layout(1, 2), Layout(2, 2)]


KERNELS = {"reference": 1e-4, "cpu": 0.07}
"""Kernels, and their largest error relative to the largest logit: the compiled ones round activations to 8 bits."""


def kernel_sets() -> list[str]:
    """The compiled kernels are there only where they were built."""
    try:
        load_library()
    except LibraryMissing:
        return ["reference"]
    return list(KERNELS)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_layout_gives_the_logits_and_greedy_tokens_of_the_whole_model(name: str) -> None:
    family, options = CHECKPOINTS[name]
    path = tiny_checkpoint(family, **COMMON, **options)
    whole = ShardedModel(path)
    expected, expected_ids = logits_of(whole), greedy_ids(whole)
    assert expected.std() > 0.05
    for tp, pp in LAYOUTS:
        model = ShardedModel(path, tp=tp, pp=pp)
        assert error_of(logits_of(model), expected) < 1e-5, (tp, pp)
        assert greedy_ids(model) == expected_ids, (tp, pp)


def test_heads_are_divided_by_three_where_they_are_nine() -> None:
    path = tiny_checkpoint("llama", num_heads=9, num_kv_heads=3, head_dim=8, hidden_size=72, intermediate_size=96)
    whole, model = ShardedModel(path), ShardedModel(path, tp=3)
    assert [spec.num_kv_heads for spec in model.kv_cache_specs()] == [1] * 6
    assert error_of(logits_of(model), logits_of(whole)) < 1e-5
    assert greedy_ids(model) == greedy_ids(whole)


@pytest.mark.parametrize("kernels", kernel_sets())
@pytest.mark.parametrize("is_tied", [False, True])
def test_last_ranks_may_hold_no_token_id(tmp_path: Path, is_tied: bool, kernels: str) -> None:
    source = tiny_checkpoint("llama", tie_word_embeddings=is_tied)
    path = tmp_path / "few"
    shutil.copytree(source, path)
    tensors = load_file(source / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = tensors[name][:5].clone()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "vocab_size": 5}))
    make_ops, make_ranks = partial(select_ops, kernels), SharedMemoryRanks if kernels == "cpu" else ThreadedRanks
    whole = ShardedModel(path, make_ops=make_ops)
    model = ShardedModel(path, tp=4, make_ops=make_ops, make_ranks=make_ranks)  # of 2, 2, 1 and 0 ids
    ids, step = torch.tensor([4, 0, 3, 2, 1]), paged_step([Chunk([1], 0, 5)])
    rows = []
    for each in (whole, model):
        hidden = each.forward(ids, step, [nan_filled_cache(spec, 2) for spec in each.kv_cache_specs()])
        rows.append((each.compute_logits(hidden), each.choose_tokens(hidden, 4, [0, 3])))
    (expected, expected_best), (logits, best) = rows
    assert error_of(logits, expected) < 1e-5
    assert best.best_ids == expected_best.best_ids
    assert best.logits is not None
    assert torch.equal(best.logits, logits[[0, 3], :4])


@pytest.mark.parametrize(
    ("family", "dtype", "kv_dtype", "options"),
    [
        ("llama", torch.float32, torch.float16, {}),
        ("phi3", torch.bfloat16, torch.float16, {"sliding_window": 24}),
        ("gemma2", torch.bfloat16, torch.bfloat16, {"sliding_window": 24, "logit_soft_cap": 2.0}),
    ],
)
@pytest.mark.parametrize("layout", [Layout(2, 2), Layout(4, 1)])
def test_a_tokens_bits_are_its_own_within_a_layout(
    family: Any, dtype: torch.dtype, kv_dtype: torch.dtype, options: dict[str, Any], layout: Layout
) -> None:
    path = tiny_checkpoint(family, **options)
    model = ShardedModel(path, tp=layout.tp, pp=layout.pp, dtype=dtype)
    assert_bits_are_a_requests_own(model, kv_dtype)


def write_packed(directory: Path, name: str) -> tuple[Path, Path]:
    """Write a quantized llama by the name of its packing; return it and a plain one of the same weights."""
    if name.startswith("Q"):
        tiny = tiny_gguf("llama", name, hidden_size=256, head_dim=64)
        return tiny.path, tiny.reference
    source = tiny_checkpoint("llama", hidden_size=256, head_dim=64, dtype="float32", num_layers=2)
    if name == "awq":
        stated: dict[str, object] = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}
    else:
        stated = {"quant_method": "gptq", "bits": 4, "sym": True, "checkpoint_format": "gptq"}
        stated["desc_act"] = name == "gptq, act order"

    def write(module: str, weight: Tensor) -> StoredLayer | None:
        if module == "lm_head":
            return None
        return awq(weight) if name == "awq" else gptq(weight, has_act_order=name == "gptq, act order")

    return write_quantized(source, directory, write, {**stated, "group_size": 32})


@pytest.mark.parametrize("layout", [Layout(2, 2), Layout(4, 1)])
@pytest.mark.parametrize("name", ["awq", "gptq", "gptq, act order", "Q4_1", "Q8_0", "Q4_K"])
def test_packed_weights_are_divided_as_their_values_are(tmp_path: Path, name: str, layout: Layout) -> None:
    packed, plain = write_packed(tmp_path, name)
    expected = logits_of(ShardedModel(plain))
    for kernels in kernel_sets():
        dtype = None if kernels == "cpu" else torch.float32
        make_ops = partial(select_ops, kernels)
        model = ShardedModel(packed, tp=layout.tp, pp=layout.pp, make_ops=make_ops, dtype=dtype)
        assert error_of(logits_of(model), expected) < KERNELS[kernels], kernels


@pytest.mark.parametrize("options", [["int4"], ["int8"], ["fp8"], ["int4", "--format=gptq"]])
@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_checkpoints_that_quantize_wrote_are_divided(tmp_path: Path, family: Any, options: list[str]) -> None:
    source = tiny_checkpoint(family, dtype="bfloat16", hidden_size=128, head_dim=32)
    assert main(["--to", *options, "--out", str(tmp_path / "packed"), str(source)]) == 0
    whole = logits_of(ShardedModel(tmp_path / "packed"))
    for kernels in kernel_sets():
        model = ShardedModel(tmp_path / "packed", tp=2, pp=2, make_ops=partial(select_ops, kernels))
        assert error_of(logits_of(model), whole) < KERNELS[kernels], kernels


def test_a_rank_reads_its_part_alone() -> None:
    path = tiny_checkpoint("llama", attention_bias=True, vocab_size=512)
    stored = load_file(path / "model.safetensors")
    alike = sum(t.nbytes for name, t in stored.items() if "norm" in name)
    of_output = sum(t.nbytes for name, t in stored.items() if name.endswith("o_proj.bias"))
    total = sum(t.nbytes for t in stored.values())
    for tp, pp in (Layout(1, 1), Layout(2, 1), Layout(1, 2), Layout(2, 2)):
        sizes = ShardedModel(path, tp=tp, pp=pp).loaded_bytes
        assert sum(map(sum, sizes)) == total + (tp - 1) * alike
        for of_stage in sizes:
            assert sum(of_stage[1:]) == (tp - 1) * (of_stage[0] - of_output // pp)


@pytest.mark.parametrize(
    "name", ["model.layers.0.mlp.up_proj.weight", "model.layers.2.input_layernorm.weight", "lm_head.weight"]
)
def test_every_rank_misses_what_the_checkpoint_lacks(tmp_path: Path, name: str) -> None:
    source = tiny_checkpoint("llama", num_layers=3)
    path = tmp_path / "torn"
    shutil.copytree(source, path)
    tensors = load_file(source / "model.safetensors")
    config = load_model_config(source)

    def refusal(stage: int, changed: dict[str, Tensor]) -> str:
        save_file(changed, path / "model.safetensors", metadata={"format": "pt"})
        model = build_model(
            config, select_ops("reference"), dtype=torch.float32, device=torch.device("cpu"), stage=Share(stage, 2)
        )
        with pytest.raises(ConfigError) as refused:
            load_weights(model, msgspec.structs.replace(config, model_path=str(path)))
        return str(refused.value)

    without = {other: tensor for other, tensor in tensors.items() if other != name}
    for stage in (0, 1):
        assert name in refusal(stage, without)
        assert "extra" in refusal(stage, {**tensors, "model.layers.3.extra": torch.zeros(1)})
        assert f"{name}" in refusal(stage, {**tensors, name: torch.zeros(7)})


def test_scales_of_some_layers_alone_are_seen_on_every_stage(tmp_path: Path) -> None:
    source = tiny_checkpoint("llama")
    path = tmp_path / "scaled"
    shutil.copytree(source, path)
    tensors = load_file(source / "model.safetensors")
    scales = {f"model.layers.1.self_attn.{letter}_scale": torch.tensor(0.5) for letter in "kv"}
    save_file({**tensors, **scales}, path / "model.safetensors", metadata={"format": "pt"})
    model = ShardedModel(path, tp=2, pp=2)
    for shards in model.stages:
        for shard in shards:
            assert shard.kv_scales() == [None, KVScales(0.5, 0.5)]
    assert [shards[0].stage_layers for shards in model.stages] == [range(1), range(1, 2)]
