"""Logits of every family and format against `transformers` on the same weights, fp32, KV in fp32."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pagewire.checkpoint.gguf_file import GGUFFile
from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.weights import load_weights
from pagewire.ipc.sampling_params import Sampling
from tests.support.paged import Chunk, nan_filled_cache, paged_step
from tests.support.runner import Row, RunnerDriver, make_runner
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf

NUM_TOKENS = 150  # beyond every window and every original rotary length below
MAX_ERROR = 1e-4

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "rope_type": "longrope", "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.0],
    "long_factor": [1.0, 1.2, 1.9, 3.5, 7.0, 12.0, 20.0, 30.0],
}  # fmt: skip
MULTIPLIERS = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.1, "residual_multiplier": 0.3, "logits_scaling": 8.0
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 4.0}
CAPS = {"attention_soft_cap": 1.5, "logit_soft_cap": 2.0}
CHECKPOINTS: list[tuple[str, dict[str, Any]]] = [
    ("gemma2", {"sliding_window": 24, "num_layers": 4, "tie_word_embeddings": True, **CAPS}),
    ("gemma2", {"sliding_window": 8, "head_dim": 32, "query_pre_attn_scalar": 20, "attention_bias": True}),
    ("gemma3", {"sliding_window": 24, "num_layers": 7, "rope_theta": 1e6, "tie_word_embeddings": True}),
    (
        "gemma3",
        {
            "sliding_window": 24,
            "sliding_window_pattern": 2,
            "head_dim": 32,
            "query_pre_attn_scalar": 20,
            "rope_theta": 1e5,
            "rope_scaling": LINEAR,
            "local_rope_theta": 500.0,
            "logit_soft_cap": 2.0,
        },
    ),
    (
        "gemma3",
        {
            "sliding_window": 8,
            "layer_types": ("full_attention", "sliding_attention"),
            "rope_theta": 1e5,
            "rope_scaling": LINEAR,
            "rope_spelling": "rope_parameters",
            "dtype": "bfloat16",
            "attention_bias": True,
        },
    ),
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "rope_scaling": LLAMA3}),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "max_position": 64}),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}, "max_position": 64}),
    ("llama", {"num_heads": 8, "num_kv_heads": 8, "head_dim": 10, "dtype": "bfloat16", "num_shards": 2}),
    ("mistral", {"sliding_window": 24}),
    ("mistral", {"sliding_window": 24, "layer_types": ("full_attention", "sliding_attention")}),
    ("mistral", {"sliding_window": 8, "layer_types": ("full_attention", "full_attention")}),
    ("mistral", {"sliding_window": None}),
    ("qwen2", {"sliding_window": 8, "layer_types": ("full_attention", "full_attention")}),
    ("qwen2", {"rope_scaling": YARN, "num_heads": 14, "head_dim": 32}),
    ("qwen2", {"sliding_window": 24, "max_window_layers": 1, "tie_word_embeddings": True}),
    ("qwen3", {"attention_bias": True, "head_dim": 48}),
    ("qwen3", {"sliding_window": 24, "max_window_layers": 0, "rope_scaling": YARN}),
    ("mixtral", {}),
    ("mixtral", {"sliding_window": 24, "num_experts": 8, "num_chosen_experts": 3, "dtype": "bfloat16"}),
    ("qwen3_moe", {"num_layers": 3, "dense_layers": (1,)}),
    ("qwen3_moe", {"num_experts": 9, "num_chosen_experts": 4, "expert_size": 48, "head_dim": 48}),
    ("phi3", {}),
    ("phi3", {"sliding_window": 24, "dtype": "bfloat16", "num_shards": 2}),
    ("phi3", {"partial_rotary_factor": 0.75, "tie_word_embeddings": True, "num_kv_heads": 4}),
    ("phi3", {"rope_scaling": LONGROPE}),
    ("phi3", {"rope_scaling": {**LONGROPE, "original_max_position_embeddings": 256}, "rope_spelling": "type"}),
    ("phi3", {"rope_scaling": LONGROPE, "sliding_window": 100, "rope_spelling": "both"}),
    (
        "phi3",
        {
            "rope_scaling": {key: value[:6] if isinstance(value, list) else value for key, value in LONGROPE.items()},
            "partial_rotary_factor": 0.75,
            "rope_spelling": "rope_parameters",
        },
    ),
    ("granite", {}),
    ("granite", MULTIPLIERS),
    ("granite", {**MULTIPLIERS, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("granite", {"residual_multiplier": 2.5, "embedding_multiplier": 0.2, "attention_multiplier": 0.02}),
]
# One of each group of formats in each family that files come in, the embedding in another type than the rest.
GGUF_FILES: list[tuple[str, str, dict[str, Any]]] = [
    ("gemma2", "Q4_0", {"sliding_window": 24, "num_layers": 4, "tie_word_embeddings": True, **CAPS}),
    ("gemma3", "F16", {"sliding_window": 24, "num_layers": 7, "rope_theta": 1e5, "rope_scaling": LINEAR}),
    (
        "gemma3",
        "Q8_0",
        {"sliding_window": 24, "sliding_window_pattern": 2, "local_rope_theta": 500.0, "attention_bias": True},
    ),
    ("llama", "F16", {"rope_scaling": LLAMA3}),
    ("llama", "Q4_1", {"embedding_quant": "Q8_0", "tie_word_embeddings": True}),
    ("llama", "Q4_K", {"num_shards": 2}),
    ("llama", "IQ4_XS", {"rope_scaling": LLAMA3, "tie_word_embeddings": True}),
    ("llama", "Q3_K", {"embedding_quant": "Q6_K"}),
    ("mistral", "Q5_0", {"sliding_window": 24}),
    ("mistral", "Q5_K", {}),
    ("qwen2", "BF16", {"rope_scaling": YARN}),
    ("qwen2", "Q4_0", {"tie_word_embeddings": True}),
    ("qwen3", "Q5_1", {}),
    ("qwen3", "IQ4_NL", {}),
    ("qwen2", "Q2_K", {"value_quant": "Q3_K", "embedding_quant": "Q6_K"}),
    ("qwen3", "Q6_K", {"embedding_quant": "F16"}),
    ("phi3", "F16", {"rope_scaling": LONGROPE, "sliding_window": 24}),
    ("phi3", "Q4_0", {"partial_rotary_factor": 0.5, "tie_word_embeddings": True}),
    ("phi3", "Q5_K", {}),
    ("granite", "Q8_0", {**MULTIPLIERS, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("granite", "Q4_K", MULTIPLIERS),
    ("mixtral", "Q4_K", {"value_quant": "Q6_K"}),
    ("mixtral", "F16", {"num_experts": 5, "num_chosen_experts": 3, "num_shards": 3}),
    ("qwen3_moe", "Q8_0", {"num_layers": 3, "dense_layers": (1,), "tie_word_embeddings": True}),
    ("qwen3_moe", "BF16", {"expert_size": 24}),
]


def logits_here(path: Path, input_ids: torch.Tensor) -> torch.Tensor:
    """Run the tokens in chunks of 64 over scattered, NaN-filled blocks."""
    config = load_model_config(path)
    model = build_model(
        config, select_ops("reference"), dtype=torch.float32, device=torch.device("cpu"), max_model_len=len(input_ids)
    )
    load_weights(model, config)
    caches = [nan_filled_cache(spec, 16) for spec in model.kv_cache_specs()]
    rows = []
    for start in range(0, len(input_ids), 64):
        chunk = input_ids[start : start + 64]
        rows.append(model.forward(chunk, paged_step([Chunk(range(15, 1, -1), start, len(chunk))]), caches))
    return model.compute_logits(torch.cat(rows))


def relative_error(path: Path, reference: Path) -> float:
    """Return max|a - b| / max|b| over the logits of all positions."""
    theirs = AutoModelForCausalLM.from_pretrained(reference, dtype=torch.float32, attn_implementation="eager")
    input_ids = torch.randint(0, theirs.config.vocab_size, (NUM_TOKENS,), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = theirs(input_ids[None]).logits[0]
        assert 0.3 < expected.std() < 3
        return float((logits_here(path, input_ids) - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(("family", "options"), CHECKPOINTS)
def test_hugging_face_checkpoint_gives_the_logits_of_transformers(family: Any, options: dict[str, Any]) -> None:
    directory = tiny_checkpoint(family, **options)
    assert relative_error(directory, directory) <= MAX_ERROR


@pytest.mark.parametrize(("family", "quant", "options"), GGUF_FILES)
def test_gguf_file_gives_the_logits_of_its_unpacked_weights(family: Any, quant: str, options: dict[str, Any]) -> None:
    tiny = tiny_gguf(family, quant, **options)
    assert relative_error(tiny.path, tiny.reference) <= MAX_ERROR


def test_gguf_file_without_an_output_layer_rotates_by_the_factors_that_it_holds(tmp_path: Path) -> None:
    tiny = tiny_gguf("llama", "F16", rope_scaling=LLAMA3, tie_word_embeddings=True)
    with GGUFFile(tiny.path) as file:
        assert "rope_freqs.weight" in file.tensors
        assert "output.weight" not in file.tensors
    assert relative_error(tiny.path, tiny.reference) <= MAX_ERROR
    unscaled = Path(shutil.copytree(tiny.reference, tmp_path / "model"))
    config = json.loads((unscaled / "config.json").read_text())
    (unscaled / "config.json").write_text(json.dumps(config | {"rope_scaling": None}))
    assert relative_error(tiny.path, unscaled) > 1000 * MAX_ERROR


def test_window_that_the_configuration_switches_off_is_no_window(tmp_path: Path) -> None:
    directory = shutil.copytree(tiny_checkpoint("qwen2", sliding_window=8, max_window_layers=0), tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    assert config["use_sliding_window"]
    windowed = relative_error(directory, directory)
    (directory / "config.json").write_text(json.dumps(config | {"use_sliding_window": False}))
    assert max(windowed, relative_error(directory, directory)) <= MAX_ERROR


@pytest.mark.parametrize(
    ("kernels", "num_tokens"), [("reference", 60), pytest.param("triton", 5, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("gemma2", {"sliding_window": 12, **CAPS}),
        ("gemma3", {"sliding_window": 12, "sliding_window_pattern": 2, "rope_theta": 1e6}),
    ],
)
def test_greedy_tokens_are_those_of_transformers(
    family: Any, options: dict[str, Any], kernels: str, num_tokens: int
) -> None:
    if kernels == "triton":
        pytest.importorskip("triton")
    directory = tiny_checkpoint(family, num_layers=4, **options)
    row = Row(row_id=1, prompt=list(range(30, 60)), sampling=Sampling(temperature=0.0), block_table=list(range(40)))
    RunnerDriver(make_runner(directory, kernels=kernels)).run([row], num_tokens=num_tokens, chunk=num_tokens)
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        logits = theirs(torch.tensor([row.prompt + row.tokens])).logits[0]
    num_drawable = load_model_config(directory).tokenizer_size
    expected = logits[len(row.prompt) - 1 : -1, :num_drawable].argmax(dim=-1)
    assert row.tokens == expected.tolist()
    assert len(set(row.tokens)) > num_tokens // 5
