"""Writes random LoRA adapters for a tiny checkpoint, as PEFT would."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from tools.tiny_model.spec import TinyModelSpec
from tools.tiny_model.weights import make_weights

ALL_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    spec: TinyModelSpec,
    directory: Path,
    *,
    seed: int = 0,
    rank: int = 4,
    modules: Sequence[str] = ALL_MODULES,
    strength: float = 0.5,
    config: Mapping[str, object] | None = None,
) -> Path:
    """Write an adapter's directory, which is made if need be, and return it.

    Args:
        spec: of the model that it changes.
        directory: where.
        seed: of its numbers.
        rank: of every module.
        modules: that it changes, in all layers; those that the model lacks are passed over.
        strength: how large the changes are beside the weights.
        config: further keys of adapter_config.json.
    """
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in make_weights(spec).items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] not in modules or ".experts." in module:
            continue
        out_features, in_features = weight.shape
        a = torch.randn(rank, in_features, generator=generator) / in_features**0.5
        b = torch.randn(out_features, rank, generator=generator) * strength / rank**0.5
        tensors[f"base_model.model.{module}.lora_A.weight"] = a
        tensors[f"base_model.model.{module}.lora_B.weight"] = b
    save_file(tensors, str(directory / "adapter_model.safetensors"))
    written = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted(modules),
        "bias": "none",
        **(config or {}),
    }
    (directory / "adapter_config.json").write_text(json.dumps(written), encoding="utf-8")
    return directory
