"""A checkpoint says in which format its weights will lie in memory."""

from __future__ import annotations

import msgspec
import pytest

from pagewire.checkpoint.estimate.shapes import SHAPES
from pagewire.checkpoint.estimate.stored_format import stored_bits
from pagewire.checkpoint.estimate.weights import format_bits
from pagewire.checkpoint.loading import load_model_config
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_gguf


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
