from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.model_config import LayerKind
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.models.base import Model
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.weights import load_weights
from pagewire.ipc.errors import ConfigError
from tests.support.batch_invariance import assert_bits_are_a_requests_own
from tests.support.tiny_model import tiny_checkpoint

MULTIPLIERS = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.1, "residual_multiplier": 0.3, "logits_scaling": 8.0
}  # fmt: skip
SOFT_CAPS = {"attention_soft_cap": 1.5, "logit_soft_cap": 2.0}


def load(family: Any, dtype: torch.dtype, **options: Any) -> Model:
    """Build and load a tiny model."""
    config = load_model_config(tiny_checkpoint(family, **options))
    model = build_model(config, select_ops("reference"), dtype=dtype, device=torch.device("cpu"), max_model_len=128)
    load_weights(model, config)
    return model


@pytest.mark.parametrize(
    ("family", "dtype", "kv_dtype", "options"),
    [
        ("llama", torch.float32, torch.float16, {}),
        ("qwen3", torch.float32, torch.float32, {}),
        ("mistral", torch.bfloat16, torch.bfloat16, {"sliding_window": 24}),
        ("phi3", torch.bfloat16, torch.float16, {"sliding_window": 24, "partial_rotary_factor": 0.75}),
        ("gemma2", torch.bfloat16, torch.bfloat16, {"sliding_window": 24, **SOFT_CAPS}),
        ("gemma3", torch.float32, torch.float16, {"sliding_window": 24, "sliding_window_pattern": 2}),
        ("granite", torch.float32, torch.float32, MULTIPLIERS),
        ("granite", torch.bfloat16, torch.bfloat16, MULTIPLIERS),
    ],
)
def test_logits_have_the_same_bits_alone_batched_and_chunked(
    family: str, dtype: torch.dtype, kv_dtype: torch.dtype, options: dict[str, Any]
) -> None:
    assert_bits_are_a_requests_own(load(family, dtype, **options), kv_dtype)


def test_each_layer_asks_for_the_cache_of_its_kind() -> None:
    model = load("qwen2", torch.float32, sliding_window=24, max_window_layers=1)
    full, sliding = model.kv_cache_specs()
    assert (full.kind, full.sliding_window) == (LayerKind.FULL, None)
    assert (sliding.kind, sliding.sliding_window) == (LayerKind.SLIDING, 24)
    assert (full.num_kv_heads, full.head_dim) == (2, 16)


@pytest.mark.parametrize(
    ("change", "message"), [({"architecture": "GPT2"}, "GPT2.*Qwen3"), ({"hidden_act": "gelu"}, "gelu")]
)
def test_unknown_model_is_refused_by_name(change: dict[str, str], message: str) -> None:
    config = msgspec.structs.replace(load_model_config(tiny_checkpoint()), **change)
    with pytest.raises(ConfigError, match=message):
        build_model(config, select_ops("auto"), dtype=torch.float32, device=torch.device("cpu"))
