"""What the families add to Llama, on the compiled CPU kernels: the logits of the reference, and bits of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing, load_library
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.models.base import Model
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.weights import load_weights
from tests.support.batch_invariance import assert_bits_are_a_requests_own
from tests.support.paged import Chunk, nan_filled_cache, paged_step
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf

NUM_TOKENS = 120
MULTIPLIERS = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.1, "residual_multiplier": 0.3, "logits_scaling": 8.0
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.0, 1.1, 1.3, 1.6, 2.0], "long_factor": [1.0, 1.2, 1.9, 3.5, 7.0, 12.0],
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # Any: fields of TinyModelSpec
    "gemma2": ("gemma2", {"sliding_window": 24, "num_layers": 4, "attention_soft_cap": 1.5, "logit_soft_cap": 2.0}),
    "gemma3": ("gemma3", {"sliding_window": 24, "sliding_window_pattern": 2, "rope_theta": 1e6}),
    "phi3": ("phi3", {"sliding_window": 24, "partial_rotary_factor": 0.75, "rope_scaling": LONGROPE}),
    "granite": ("granite", {**MULTIPLIERS, "attention_bias": True, "mlp_bias": True}),
    "granite-tied": ("granite", {**MULTIPLIERS, "residual_multiplier": 2.5, "tie_word_embeddings": True}),
}


@pytest.fixture(autouse=True)
def _library() -> None:
    try:
        load_library()
    except LibraryMissing as exc:
        pytest.skip(str(exc))


def load(path: Path, kernels: str) -> Model:
    config = load_model_config(path)
    model = build_model(config, select_ops(kernels), dtype=torch.float32, device=torch.device("cpu"), max_model_len=128)
    load_weights(model, config)
    return model


def logits(model: Model) -> torch.Tensor:
    input_ids = torch.randint(0, 512, (NUM_TOKENS,), generator=torch.Generator().manual_seed(0))
    caches = [nan_filled_cache(spec, 10) for spec in model.kv_cache_specs()]
    return model.compute_logits(model.forward(input_ids, paged_step([Chunk(range(9, 1, -1), 0, NUM_TOKENS)]), caches))


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_reference(name: str) -> None:
    family, options = FAMILIES[name]
    path = tiny_checkpoint(family, **options)  # type: ignore[arg-type]  # parametrized names
    expected = logits(load(path, "reference"))
    assert (logits(load(path, "cpu")) - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("quant", ["F16", "Q4_1"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_tokens_bits_are_its_own(name: str, quant: str) -> None:
    family, options = FAMILIES[name]
    path = tiny_gguf(family, quant, **options).path  # type: ignore[arg-type]  # parametrized names
    assert_bits_are_a_requests_own(load(path, "cpu"), torch.float16)
