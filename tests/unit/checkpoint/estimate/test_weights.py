"""Weights on paper are what the executor loads, and devices share them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pagewire.checkpoint.estimate.shapes import SHAPES
from pagewire.checkpoint.estimate.stored_format import stored_bits
from pagewire.checkpoint.estimate.weights import format_bits, weight_bytes
from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.placement import Placement
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.weights import load_weights
from tests.support.tiny_model import tiny_checkpoint


def loaded_bytes(path: Path, dtype: torch.dtype) -> int:
    """The bytes that the executor announces before it reads the weights."""
    config = load_model_config(path)
    sizes: list[int] = []
    model = build_model(config, select_ops("reference"), dtype=dtype, device=torch.device("cpu"))
    load_weights(model, config, check_size=sizes.append)
    return sizes[0]


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "num_kv_heads": 1, "vocab_size": 503}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("mistral", {"intermediate_size": 136}),
        ("qwen2", {"head_dim": 32}),
        ("qwen3", {"num_layers": 3}),
        ("mixtral", {"num_experts": 5}),
        ("qwen3_moe", {"num_layers": 3, "dense_layers": (1,)}),
    ],
)
def test_a_dense_checkpoint_takes_what_the_executor_loads(family: str, options: dict[str, object]) -> None:
    path = tiny_checkpoint(family, dtype="bfloat16", **options)  # type: ignore[arg-type]  # checked by its spec
    config = load_model_config(path)
    # Biases may be kept in 32 bits, which of a real model's billions nobody sees.
    assert weight_bytes(config, stored_bits(config), Placement()) == pytest.approx(
        loaded_bytes(path, torch.bfloat16), rel=0.01 if config.qkv_bias else 0
    )


@pytest.mark.parametrize("shape", ["llama-3.1-70b", "mixtral-8x22b"])
@pytest.mark.parametrize("placement", [Placement(tp=2), Placement(tp=8), Placement(tp=4, pp=2), Placement(pp=3)])
def test_devices_together_hold_all_weights(placement: Placement, shape: str) -> None:
    config, bits = SHAPES[shape].config, format_bits("bfloat16")
    whole, part = weight_bytes(config, bits, Placement()), weight_bytes(config, bits, placement)
    assert whole <= part * placement.num_devices < 1.05 * whole


def test_four_bits_with_scale_and_minimum_are_five() -> None:
    config = SHAPES["llama-3-70b"].config
    dense, in_4_bits = (weight_bytes(config, format_bits(name), Placement()) for name in ("bfloat16", "int4"))
    ends = 2 * 2 * config.vocab_size * config.hidden_size
    assert (in_4_bits - ends) / (dense - ends) == pytest.approx(5 / 16, rel=1e-3)
