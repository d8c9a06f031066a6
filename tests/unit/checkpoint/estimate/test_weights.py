"""Weights on paper are what the executor loads, and what the models' authors say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from pagewire.checkpoint.estimate.placement import Placement
from pagewire.checkpoint.estimate.shapes import SHAPES, find_shape
from pagewire.checkpoint.estimate.stored_format import stored_bits
from pagewire.checkpoint.estimate.weights import format_bits, num_parameters, weight_bytes
from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.weights import load_weights
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf


@pytest.mark.parametrize(
    ("shape", "billions"),
    [
        ("llama-3.2-1b", 1.236), ("llama-3.2-3b", 3.213), ("llama-3.1-8b", 8.030), ("llama-3-70b", 70.554),
        ("llama-3.1-405b", 405.853), ("llama-2-7b", 6.738), ("llama-2-13b", 13.016), ("llama-2-70b", 68.977),
        ("mistral-7b", 7.248), ("qwen2.5-7b", 7.616), ("qwen2.5-14b", 14.770), ("qwen2.5-32b", 32.764),
        ("qwen2.5-72b", 72.706), ("qwen3-8b", 8.191), ("qwen3-14b", 14.768), ("qwen3-32b", 32.762),
        ("smollm2-135m", 0.13452),
    ],
)  # fmt: skip
def test_built_in_shapes_have_the_published_number_of_parameters(shape: str, billions: float) -> None:
    assert num_parameters(SHAPES[shape].config) / 1e9 == pytest.approx(billions, rel=2e-4)


def test_shapes_are_found_by_name_and_by_hub_id_in_any_case() -> None:
    for name in ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", "META-LLAMA/meta-llama-3.1-8b"):
        found = find_shape(name)
        assert found is not None
        assert found[0] == "llama-3.1-8b"
    assert find_shape("someone/Llama-3.1-8B-Instruct-FP8") is None


def test_no_repository_stands_for_two_shapes() -> None:
    hub_ids = [hub_id for shape in SHAPES.values() for hub_id in shape.hub_ids]
    assert len(hub_ids) == len(set(hub_ids))
    assert all(hub_id == hub_id.lower() for hub_id in hub_ids)


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
    ],
)
def test_a_dense_checkpoint_takes_what_the_executor_loads(family: str, options: dict[str, object]) -> None:
    path = tiny_checkpoint(family, dtype="bfloat16", **options)  # type: ignore[arg-type]  # checked by its spec
    config = load_model_config(path)
    # Biases may be kept in 32 bits, which of a real model's billions nobody sees.
    assert weight_bytes(config, stored_bits(config), Placement()) == pytest.approx(
        loaded_bytes(path, torch.bfloat16), rel=0.01 if config.qkv_bias else 0
    )


@pytest.mark.parametrize(
    ("quant", "name", "bits"),
    [("Q4_0", "Q4_0", 5), ("Q4_1", "Q4_1", 5), ("Q8_0", "Q8_0", 8.5), ("Q6_K", "Q6_K", 9), ("F32", "F32", 16)],
)
def test_gguf_weights_take_the_bits_of_the_layout_that_they_are_loaded_into(quant: str, name: str, bits: float) -> None:
    found = stored_bits(load_model_config(tiny_gguf("llama", quant).path))
    assert found.name == name
    assert found.layers == bits


def test_gguf_of_several_types_takes_their_average() -> None:
    path = tiny_gguf("llama", "Q4_0", value_quant="Q8_0", embedding_quant="Q8_0").path
    bits = stored_bits(load_model_config(path))
    assert bits.name == "Q4_0"
    assert 5 < bits.layers < 8.5
    assert bits.embedding == 8.5


@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "int4",
        ),
    ],
)
def test_a_quantized_checkpoint_says_its_format(quantization: dict[str, object], name: str) -> None:
    config = msgspec.structs.replace(SHAPES["llama-3-8b"].config, quantization=quantization)
    assert stored_bits(config).name == name


@pytest.mark.parametrize("quantization", [{"quant_method": "aqlm"}, {"config_groups": []}, {"bits": 3}])
def test_an_unknown_quantization_is_refused_with_a_remedy(quantization: dict[str, object]) -> None:
    config = msgspec.structs.replace(SHAPES["llama-3-8b"].config, quantization=quantization)
    with pytest.raises(ConfigError, match="--weights int4"):
        stored_bits(config)


def test_float32_checkpoints_count_as_16_bits() -> None:
    config = msgspec.structs.replace(SHAPES["llama-3-8b"].config, dtype="float32")
    assert stored_bits(config) == format_bits("bfloat16")


@pytest.mark.parametrize("placement", [Placement(tp=2), Placement(tp=8), Placement(tp=4, pp=2), Placement(pp=3)])
def test_devices_together_hold_all_weights(placement: Placement) -> None:
    config, bits = SHAPES["llama-3.1-70b"].config, format_bits("bfloat16")
    whole, part = weight_bytes(config, bits, Placement()), weight_bytes(config, bits, placement)
    assert whole <= part * placement.num_devices < 1.05 * whole


def test_four_bits_with_scale_and_minimum_are_five() -> None:
    config = SHAPES["llama-3-70b"].config
    dense, in_4_bits = (weight_bytes(config, format_bits(name), Placement()) for name in ("bfloat16", "int4"))
    ends = 2 * 2 * config.vocab_size * config.hidden_size
    assert (in_4_bits - ends) / (dense - ends) == pytest.approx(5 / 16, rel=1e-3)
