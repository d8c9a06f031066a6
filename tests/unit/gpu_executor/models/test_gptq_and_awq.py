"""GPTQ and AWQ checkpoints give the logits of the weights that they stand for, on the reference and compiled kernels.

An independent writer packs them. Those weights, written plain, give the logits in float32 by the reference kernels.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing, load_library
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.weights import load_weights
from pagewire.ipc.errors import ConfigError
from tests.support.paged import Chunk, nan_filled_cache, paged_step
from tests.support.quantized_writers import awq, gptq, write_quantized
from tests.support.stored_layers import StoredLayer
from tests.support.tiny_model import tiny_checkpoint

NUM_TOKENS = 24
# Relative to the largest logit. The compiled kernels round activations to 8 bits, by groups of 32 channels, and scales
# to float16.
MAX_ERROR = {"reference": 1e-4, "cpu": 0.07}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "checkpoint_format": "gptq"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def kernel_sets() -> list[str]:
    """The compiled kernels are there only where they were built."""
    try:
        load_library()
    except LibraryMissing:
        return ["reference"]
    return ["reference", "cpu"]


def logits_of(path: Path, kernels: str) -> Tensor:
    config, ops = load_model_config(path), select_ops(kernels)
    model = build_model(config, ops, dtype=torch.float32, device=torch.device("cpu"), max_model_len=NUM_TOKENS)
    load_weights(model, config)
    caches = [nan_filled_cache(spec, 4) for spec in model.kv_cache_specs()]
    input_ids = torch.randint(0, 128, (NUM_TOKENS,), generator=torch.Generator().manual_seed(0))
    hidden = model.forward(input_ids, paged_step([Chunk([1, 2], 0, NUM_TOKENS)]), caches)
    return model.compute_logits(hidden)


def check(quantized: Path, plain: Path) -> None:
    expected = logits_of(plain, "reference")
    for kernels in kernel_sets():
        error = (logits_of(quantized, kernels) - expected).abs().max() / expected.abs().max()
        assert error < MAX_ERROR[kernels], kernels


def write_gptq(directory: Path, family: Any = "llama", **options: Any) -> tuple[Path, Path]:
    """Write a checkpoint; `options` are those of `gptq`. Any: a family's name."""

    def write(module: str, weight: Tensor) -> StoredLayer | None:
        return None if module == "lm_head" else gptq(weight, **options)

    stated = {
        **GPTQ,
        "bits": options.get("bits", 4),
        "group_size": options.get("group_size", 32) or -1,
        "sym": options.get("is_symmetric", True),
        "desc_act": options.get("has_act_order", False),
        "checkpoint_format": "gptq" if options.get("zero_offset", 1) else "gptq_v2",
    }
    source = tiny_checkpoint(family, hidden_size=256, head_dim=64, dtype="float32")
    return write_quantized(source, directory, write, stated)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize("zero_offset", [0, 1])
def test_zero_points_of_gptq_are_those_of_its_format(
    tmp_path: Path, bits: int, is_symmetric: bool, zero_offset: int
) -> None:
    check(*write_gptq(tmp_path, bits=bits, is_symmetric=is_symmetric, zero_offset=zero_offset))


@pytest.mark.parametrize("stated", ["gptq", "gptq_v2", None])
@pytest.mark.parametrize("zero_offset", [0, 1])
def test_zero_points_of_symmetric_gptq_are_found_whatever_is_stated(
    tmp_path: Path, stated: str | None, zero_offset: int
) -> None:
    quantized, plain = write_gptq(tmp_path, zero_offset=zero_offset)
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = stated
    (quantized / "config.json").write_text(json.dumps(config))
    check(quantized, plain)


@pytest.mark.parametrize("group_size", [128, 32, None])
@pytest.mark.parametrize("has_act_order", [False, True])
def test_channels_of_gptq_belong_to_the_groups_they_were_given(
    tmp_path: Path, group_size: int | None, has_act_order: bool
) -> None:
    check(*write_gptq(tmp_path, group_size=group_size, has_act_order=has_act_order))


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_biases_and_norms_of_other_families_stay_as_they_are(tmp_path: Path, family: str) -> None:
    check(*write_gptq(tmp_path, family, is_symmetric=False, has_act_order=True))


def test_output_layer_is_quantized_where_gptq_says_so(tmp_path: Path) -> None:
    source = tiny_checkpoint("llama", dtype="float32")
    check(*write_quantized(source, tmp_path, lambda _, weight: gptq(weight), {**GPTQ, "lm_head": True}))


def test_members_of_a_fused_layer_may_differ(tmp_path: Path) -> None:
    def write(module: str, weight: Tensor) -> StoredLayer | None:
        if module == "lm_head" or module.endswith(("v_proj", "up_proj")):
            return None
        return gptq(weight, bits=8, group_size=64) if module.endswith("q_proj") else gptq(weight)

    dynamic = {r"-:.*\.(v|up)_proj$": {}, r"+:.*\.q_proj$": {"bits": 8, "group_size": 64}}
    source = tiny_checkpoint("llama", dtype="float32")
    check(*write_quantized(source, tmp_path, write, {**GPTQ, "dynamic": dynamic}))


@pytest.mark.parametrize("group_size", [128, 64, 32])
def test_awq_gives_the_logits_of_its_weights(tmp_path: Path, group_size: int) -> None:
    source = tiny_checkpoint("llama", hidden_size=256, head_dim=64, dtype="float32")
    check(
        *write_quantized(
            source,
            tmp_path,
            lambda module, weight: None if module == "lm_head" else awq(weight, group_size=group_size),
            {**AWQ, "group_size": group_size},
        )
    )


@pytest.mark.parametrize("entries", [["mlp.gate"], ["model.layers.0."], ["self_attn"], ["model.layers.1.mlp.up_proj"]])
@pytest.mark.parametrize("stated", [GPTQ, AWQ])
def test_modules_that_are_not_converted_are_plain_in_fused_layers_too(
    tmp_path: Path, entries: list[str], stated: dict[str, Any]
) -> None:
    def write(module: str, weight: Tensor) -> StoredLayer | None:
        if module == "lm_head" or any(entry in module for entry in entries):
            return None
        return gptq(weight) if stated is GPTQ else awq(weight)

    source = tiny_checkpoint("llama", dtype="float32")
    check(*write_quantized(source, tmp_path, write, {**stated, "modules_to_not_convert": ["lm_head", *entries]}))


def edit(directory: Path, change: Any) -> None:
    """Change a checkpoint's tensors in place; Any: a function of the dictionary."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_bias_that_the_model_does_not_have_may_only_be_of_zeros(tmp_path: Path) -> None:
    quantized, plain = write_gptq(tmp_path)
    name = "model.layers.0.mlp.up_proj.bias"
    edit(
        quantized,
        lambda tensors: tensors.update({name: torch.zeros(len(tensors["model.layers.0.mlp.up_proj.scales"].T))}),
    )
    check(quantized, plain)
    edit(quantized, lambda tensors: tensors[name].__setitem__(3, 0.5))
    with pytest.raises(ConfigError, match=rf"{name}'.*has no such tensor"):
        logits_of(quantized, "reference")


@pytest.mark.parametrize("name", ["qweight", "qzeros", "scales"])
def test_checkpoint_that_lacks_a_part_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    quantized, _ = write_gptq(tmp_path)
    edit(quantized, lambda tensors: tensors.pop(f"model.layers.0.self_attn.k_proj.{name}"))
    with pytest.raises(ConfigError, match=rf"lacks model\.layers\.0\.self_attn\.k_proj\.{name}"):
        logits_of(quantized, "reference")


def test_list_that_contradicts_the_file_is_refused_by_the_tensors_name(tmp_path: Path) -> None:
    quantized, plain = write_gptq(tmp_path)
    config = json.loads((quantized / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"lacks model\.layers\.0\..*\.qweight"):
        logits_of(plain, "reference")
    config["quantization_config"]["modules_to_not_convert"] = ["down_proj"]
    (quantized / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"model\.layers\.0\.mlp\.down_proj\.q.*is not quantized"):
        logits_of(quantized, "reference")
