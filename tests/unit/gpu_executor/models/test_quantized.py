"""Checkpoints that `pagewire quantize` wrote give the logits of their unpacked weights, on every family and kernel set.

The unpacked weights come from tests/support/unpacking.py, their logits from `transformers` in float64.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing, load_library
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.quantize_checkpoint import main
from pagewire.gpu_executor.weights import load_weights
from tests.support.paged import Chunk, nan_filled_cache, paged_step
from tests.support.tiny_model import tiny_checkpoint
from tests.support.unpacking import unpack_layer
from tools.tiny_model.spec import FAMILIES, Family

NUM_TOKENS = 24
FORMATS: dict[str, tuple[str, ...]] = {
    "int4": ("int4",),
    "int4 symmetric": ("int4", "--symmetric", "--group-size=64"),
    "int4 by row": ("int4", "--group-size=-1"),
    "int4 gptq": ("int4", "--format=gptq"),
    "int8": ("int8",),
    "int8 by group": ("int8", "--group-size=64"),
    "int8 gptq": ("int8", "--format=gptq"),
    "fp8": ("fp8",),
}
# Relative to the largest logit. The compiled kernels round activations to 8 bits, by groups of 32 channels.
MAX_ERROR = {"reference": 1e-4, "cpu": 0.07}


# What transformers can't do without.
OPTIONS: dict[str, dict[str, Any]] = {
    "gemma2": {"sliding_window": 16},
    "gemma3": {"sliding_window": 16},
}  # Any: the spec's
CHECKPOINTS = [("llama", name) for name in FORMATS]
CHECKPOINTS += [(family, "int4") for family in FAMILIES if family != "llama"]
CHECKPOINTS += [("phi3", "fp8"), ("qwen2", "int8")]


def unpack(packed: Path, source: Path, target: Path) -> None:
    """Write a quantized checkpoint's weights as plain ones in float64.

    Args:
        packed: the quantized checkpoint.
        source: what it was made of, for the names of its tensors.
        target: the new directory.
    """
    shutil.copytree(packed, target)
    config: dict[str, Any] = json.loads((packed / "config.json").read_text())  # Any: JSON
    quantization = config.pop("quantization_config")
    (target / "config.json").write_text(json.dumps(config))
    stored = load_file(packed / "model.safetensors")
    packed_modules = {name.rpartition(".")[0] for name in stored if name.endswith((".weight_scale", ".scales"))}
    plain = {}
    for name in load_file(source / "model.safetensors"):
        module = name.removesuffix(".weight")
        is_packed = module in packed_modules
        plain[name] = unpack_layer(stored, module, quantization) if is_packed else stored[name].double()
    save_file(plain, target / "model.safetensors", metadata={"format": "pt"})


def logits_here(path: Path, input_ids: Tensor, kernels: str) -> Tensor:
    """Run the tokens at once."""
    config, ops = load_model_config(path), select_ops(kernels)
    model = build_model(config, ops, dtype=torch.float32, device=torch.device("cpu"), max_model_len=NUM_TOKENS)
    load_weights(model, config)
    caches = [nan_filled_cache(spec, 4) for spec in model.kv_cache_specs()]
    hidden = model.forward(input_ids, paged_step([Chunk([1, 2], 0, NUM_TOKENS)]), caches)
    return model.compute_logits(hidden)


def kernel_sets() -> list[str]:
    """The compiled kernels are there only where they were built."""
    try:
        load_library()
    except LibraryMissing:
        return ["reference"]
    return ["reference", "cpu"]


@pytest.mark.parametrize(("family", "name"), CHECKPOINTS)
def test_logits_are_those_of_the_unpacked_weights(tmp_path: Path, family: Family, name: str) -> None:
    source = tiny_checkpoint(family, dtype="bfloat16", **OPTIONS.get(family, {}))
    to, *options = FORMATS[name]
    assert main(["--to", to, *options, "--out", str(tmp_path / "packed"), str(source)]) == 0
    unpack(tmp_path / "packed", source, tmp_path / "plain")
    # Their grouped product of experts takes no float64.
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    input_ids = torch.randint(0, theirs.config.vocab_size, (NUM_TOKENS,), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = theirs(input_ids[None]).logits[0]
        assert 0.3 < expected.std() < 3
        for kernels in kernel_sets():
            errors = (logits_here(tmp_path / "packed", input_ids, kernels) - expected).abs().amax(dim=1)
            is_close = errors <= MAX_ERROR[kernels] * expected.abs().max()
            # Rounding brings routers of random weights to the other side of near ties: their tokens get other experts.
            least = 0.75 if kernels == "cpu" and load_model_config(source).mixture is not None else 1.0
            assert is_close.float().mean() >= least, kernels
