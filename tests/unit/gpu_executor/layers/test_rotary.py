from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.model_config import RopeScaling
from pagewire.gpu_executor.layers.rotary import build_rotary_table
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope", "original_max_position_embeddings": 64,
    "short_factor": [1.0 + 0.01 * index for index in range(32)],
    "long_factor": [1.0 + 0.3 * index for index in range(32)],
}  # fmt: skip
SCALINGS: list[dict[str, Any] | None] = [
    None,
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "dynamic", "factor": 2.0},
    {**LLAMA3, "original_max_position_embeddings": 64},
    YARN,
    {**YARN, "attention_factor": 1.3, "truncate": False},
    {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9, "beta_fast": 16.0, "beta_slow": 2.0},
    LONGROPE,
    {**LONGROPE, "attention_factor": 1.3},
    {**LONGROPE, "factor": 2.0},
    {**LONGROPE, "factor": 0.5},
]
LENGTH = 400


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
def test_table_equals_transformers_below_and_beyond_the_original_length(scaling: dict[str, Any] | None) -> None:
    directory = tiny_checkpoint("llama", head_dim=64, max_position=256, rope_scaling=scaling)
    config = load_model_config(directory)
    table = build_rotary_table(config, LENGTH, torch.device("cpu"))
    reference = LlamaRotaryEmbedding(LlamaConfig.from_pretrained(directory))
    cos, sin = reference(torch.empty(0), torch.arange(LENGTH)[None])
    torch.testing.assert_close(table.cos, cos[0, :, : table.rotary_dim // 2], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(table.sin, sin[0, :, : table.rotary_dim // 2], atol=1e-6, rtol=1e-6)


def test_dynamic_table_is_fixed_by_the_longest_context_not_by_a_request() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    config = load_model_config(tiny_checkpoint("llama", max_position=128, rope_scaling=scaling))
    short, long = (build_rotary_table(config, length, torch.device("cpu")) for length in (128, 256))
    assert not torch.equal(short.cos, long.cos[:128])


def test_divisors_of_a_gguf_file_replace_the_formula() -> None:
    config = load_model_config(tiny_checkpoint())
    factors = tuple(1.0 + index for index in range(config.rotary_dim // 2))
    scaled = msgspec.structs.replace(config, rope_scaling=RopeScaling(kind="llama3", frequency_factors=factors))
    plain, divided = (build_rotary_table(c, 8, torch.device("cpu")) for c in (config, scaled))
    angles = torch.atan2(plain.sin[1], plain.cos[1]) / torch.tensor(factors)
    torch.testing.assert_close(divided.cos[1], angles.cos())


@pytest.mark.parametrize("length", [64, 65])
def test_longrope_table_is_that_of_the_longest_context_not_of_a_request(length: int) -> None:
    """transformers rotates a short text by the short factors, until it grows: its cached keys are then of another."""
    directory = tiny_checkpoint("llama", head_dim=64, max_position=256, rope_scaling=LONGROPE)
    config = load_model_config(directory)
    table = build_rotary_table(config, length, torch.device("cpu"))
    cos, _ = LlamaRotaryEmbedding(LlamaConfig.from_pretrained(directory))(torch.empty(0), torch.arange(length)[None])
    torch.testing.assert_close(table.cos, cos[0, :, :32], atol=1e-6, rtol=1e-6)
    longer = build_rotary_table(config, 256, torch.device("cpu"))
    assert torch.equal(table.cos, longer.cos[:length]) == (length > 64)


def test_each_list_of_longrope_factors_may_have_an_attention_factor() -> None:
    scaling = {**LONGROPE, "attention_factor": 1.3, "short_mscale": 1.1, "long_mscale": 1.2}
    config = load_model_config(tiny_checkpoint("llama", head_dim=64, max_position=256, rope_scaling=scaling))
    for length, factor in ((64, 1.1), (65, 1.2)):
        table = build_rotary_table(config, length, torch.device("cpu"))
        torch.testing.assert_close(table.cos[0], torch.full((32,), factor))


def test_unknown_scaling_lists_the_known_ones() -> None:
    config = msgspec.structs.replace(load_model_config(tiny_checkpoint()), rope_scaling=RopeScaling(kind="ntk"))
    with pytest.raises(ConfigError, match=r"ntk.*yarn and longrope"):
        build_rotary_table(config, 8, torch.device("cpu"))
