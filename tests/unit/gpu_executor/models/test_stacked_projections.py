"""Phi-3's checkpoints hold qkv_proj and gate_up_proj: quantized and left alone, they are known by those names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.quantize_checkpoint import main
from pagewire.gpu_executor.weights import load_weights
from tests.support.paged import Chunk, nan_filled_cache, paged_step
from tests.support.tiny_model import tiny_checkpoint
from tests.support.unpacking import unpack_layer

NUM_TOKENS = 24
LEFT_ALONE = "model.layers.1.self_attn.qkv_proj"


def logits(path: Path) -> Tensor:
    config = load_model_config(path)
    model = build_model(config, select_ops("reference"), dtype=torch.float32, device=torch.device("cpu"))
    load_weights(model, config)
    caches = [nan_filled_cache(spec, 4) for spec in model.kv_cache_specs()]
    ids = torch.randint(0, 500, (NUM_TOKENS,), generator=torch.Generator().manual_seed(0))
    return model.compute_logits(model.forward(ids, paged_step([Chunk([1, 2], 0, NUM_TOKENS)]), caches))


@pytest.mark.parametrize(
    ("options", "skip_key"),
    [
        (["--to", "int4"], "ignore"),
        (["--to", "fp8"], "ignore"),
        (["--to", "int4", "--format", "gptq", "--group-size", "32"], "modules_to_not_convert"),
    ],
)
def test_one_stacked_projection_may_be_left_alone(tmp_path: Path, options: list[str], skip_key: str) -> None:
    source, packed, plain = tiny_checkpoint("phi3"), tmp_path / "packed", tmp_path / "plain"
    assert main([*options, "--out", str(packed), str(source)]) == 0
    config = json.loads((packed / "config.json").read_text())
    stored, original = load_file(packed / "model.safetensors"), load_file(source / "model.safetensors")
    unpacked = {}
    for name, weight in original.items():
        module = name.removesuffix(".weight")
        has_scales = any(f"{module}.{key}" in stored for key in ("weight_scale", "scales"))
        is_packed = has_scales and module != LEFT_ALONE
        unpacked[name] = unpack_layer(stored, module, config["quantization_config"]).float() if is_packed else weight
    stored = {name: tensor for name, tensor in stored.items() if not name.startswith(f"{LEFT_ALONE}.")}
    stored[f"{LEFT_ALONE}.weight"] = original[f"{LEFT_ALONE}.weight"]
    save_file(stored, packed / "model.safetensors")
    config["quantization_config"].setdefault(skip_key, []).append(LEFT_ALONE)
    (packed / "config.json").write_text(json.dumps(config))
    shutil.copytree(source, plain)
    save_file(unpacked, plain / "model.safetensors")

    quantization = load_model_config(packed).quantization
    assert quantization is not None
    assert quantization.scheme_of(LEFT_ALONE) is None
    assert quantization.scheme_of("model.layers.0.self_attn.qkv_proj") is not None
    assert quantization.scheme_of("model.layers.1.mlp.gate_up_proj") is not None
    expected = logits(plain)
    assert (logits(packed) - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert (logits(source) - expected).abs().max() > 1e-3 * expected.abs().max()
