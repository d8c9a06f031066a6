"""A checkpoint says in which format its weights will lie in memory."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pagewire.checkpoint.estimate.shapes import SHAPES
from pagewire.checkpoint.estimate.stored_format import stored_bits
from pagewire.checkpoint.estimate.weights import WeightBits, format_bits
from pagewire.checkpoint.ggml_types import GGMLType
from pagewire.checkpoint.json_reader import JSONReader
from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.quantization.read_config import read_quantization
from pagewire.gpu_executor.formats.gguf_dequantize import SUPPORTED_TYPES
from pagewire.gpu_executor.formats.gguf_grouped import bytes_per_value
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


def test_stacks_of_experts_count_and_their_routers_do_not() -> None:
    assert stored_bits(load_model_config(tiny_gguf("mixtral", "Q4_0").path)).layers == 5
    mixed = stored_bits(load_model_config(tiny_gguf("qwen3_moe", "Q4_0", value_quant="Q8_0").path)).layers
    assert 5 < mixed < 6.5


def test_experts_are_packed_by_their_names_and_routers_are_not() -> None:
    every_linear = compressed("float-quantized", {**IN_8_BITS, "type": "float"}, ignore=("lm_head", "re:.*gate$"))
    but_one = [*every_linear["ignore"], "re:.*experts.7[.].*"]  # type: ignore[misc]  # of a dictionary of objects
    shape = SHAPES["mixtral-8x7b"].config
    found = [
        stored_bits(
            msgspec.structs.replace(
                shape,
                quantization=read_quantization(
                    JSONReader(Path("config.json"), {"quantization_config": {**every_linear, "ignore": ignore}})
                ),
            )
        ).layers
        for ignore in (every_linear["ignore"], but_one)
    ]
    attention, expert = 4096 * (2 * 4096 + 2 * 1024), 3 * 14_336 * 4096
    assert found[0] == 8
    assert found[1] == pytest.approx(8 + 8 * expert / (8 * expert + attention))


@pytest.mark.parametrize("ggml_type", sorted(SUPPORTED_TYPES), ids=lambda ggml_type: ggml_type.name)
def test_every_type_that_can_be_loaded_takes_the_bits_of_its_layout(ggml_type: GGMLType) -> None:
    in_groups = bytes_per_value(ggml_type)
    bits = stored_bits(load_model_config(tiny_gguf("qwen2", ggml_type.name).path)).layers
    assert bits == (16 if in_groups is None else 8 * in_groups)


def quantized(quantization: dict[str, object], **changes: object) -> WeightBits:
    """The bits of Llama 3 8B with such a quantization_config."""
    stated = JSONReader(Path("config.json"), {"quantization_config": quantization})
    shape = SHAPES["llama-3-8b"].config
    return stored_bits(msgspec.structs.replace(shape, quantization=read_quantization(stated), **changes))


def compressed(
    file_format: str, weights: dict[str, object], ignore: tuple[str, ...] = ("lm_head",)
) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": file_format,
        "config_groups": {"group_0": group},
        "ignore": list(ignore),
    }


GPTQ = {"quant_method": "gptq", "group_size": 128, "desc_act": False}
IN_4_BITS: dict[str, object] = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
IN_8_BITS: dict[str, object] = {"num_bits": 8, "type": "int", "strategy": "channel"}


@pytest.mark.parametrize(
    ("quantization", "name", "bits"),
    [
        ({"quant_method": "fp8"}, "fp8", 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4", 5),
        ({**GPTQ, "bits": 4, "sym": True}, "int4", 5),
        ({**GPTQ, "bits": 4, "sym": False}, "int4", 5),
        ({**GPTQ, "bits": 8, "sym": True}, "int8", 8.5),
        ({**GPTQ, "bits": 8, "sym": False}, "int8", 9),
        (compressed("float-quantized", {**IN_8_BITS, "type": "float"}), "fp8", 8),
        (compressed("pack-quantized", IN_4_BITS), "int4", 5),
        (compressed("pack-quantized", {**IN_4_BITS, "num_bits": 8, "symmetric": False}), "int8", 9),
        (compressed("int-quantized", IN_8_BITS), "int8", 8.5),
    ],
)
def test_packed_weights_take_the_bits_of_the_layout_that_they_are_loaded_into(
    quantization: dict[str, object], name: str, bits: float
) -> None:
    found = quantized(quantization)
    assert (found.name, found.layers, found.embedding, found.output) == (name, bits, 16, 16)


def test_layers_that_are_left_plain_count_with_their_16_bits() -> None:
    some = compressed("pack-quantized", IN_4_BITS, ("lm_head", "re:.*down_proj"))
    shape = SHAPES["llama-3-8b"].config
    down = shape.intermediate_size * shape.hidden_size
    others = 2 * down + 2 * (shape.num_heads + shape.num_kv_heads) * shape.head_dim * shape.hidden_size
    found = quantized(some)
    assert found.layers == pytest.approx((16 * down + 5 * others) / (down + others))
    assert found.name == "int4"


def test_quantized_output_layer_counts_with_its_bits_unless_it_is_the_embedding() -> None:
    everything = compressed("int-quantized", IN_8_BITS, ())
    assert quantized(everything).output == 8.5
    assert quantized(everything, tie_word_embeddings=True).output == 16


def test_layers_that_phi_stacks_go_by_their_own_names() -> None:
    some = compressed("pack-quantized", IN_4_BITS, ("lm_head", "re:.*gate_up_proj"))
    assert quantized(some, architecture="Phi3ForCausalLM").layers > quantized(some).layers == 5


def test_float32_checkpoints_count_as_16_bits() -> None:
    config = msgspec.structs.replace(SHAPES["llama-3-8b"].config, dtype="float32")
    assert stored_bits(config) == format_bits("bfloat16")
