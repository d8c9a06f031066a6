"""quant_method "compressed-tensors": groups of modules, their packings, and who comes before whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagewire.checkpoint.json_reader import JSONReader
from pagewire.checkpoint.quantization.quantization_config import QuantizationConfig
from pagewire.checkpoint.quantization.read_config import read_quantization
from pagewire.checkpoint.quantization.schemes import Fp8Scheme, Int8Scheme, PackedIntScheme
from pagewire.ipc.errors import ConfigError

Json = dict[str, Any]  # Any: JSON values

Q_PROJ, K_PROJ, DOWN_PROJ = (
    f"model.layers.0.{name}" for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj")
)
INT4: Json = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
INT8: Json = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FP8: Json = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
STATIC: Json = {"num_bits": 8, "dynamic": False, "strategy": "tensor"}
PACKED_4 = PackedIntScheme(bits=4, group_size=32, is_symmetric=True)


def group(weights: Json | None, *targets: str, **keys: Any) -> Json:
    return {"targets": list(targets) or ["Linear"], "weights": weights, **keys}


def read(*groups: Json, **keys: Any) -> QuantizationConfig:
    stated = {"quant_method": "compressed-tensors", "format": "pack-quantized", **keys}
    stated["config_groups"] = {f"group_{index}": member for index, member in enumerate(groups)}
    quantization = read_quantization(JSONReader(Path("config.json"), {"quantization_config": stated}))
    assert quantization is not None
    return quantization


@pytest.mark.parametrize(
    ("file_format", "weights", "scheme"),
    [
        ("pack-quantized", INT4, PACKED_4),
        ("pack-quantized", INT4 | {"symmetric": False}, PackedIntScheme(bits=4, group_size=32, is_symmetric=False)),
        ("pack-quantized", INT8, PackedIntScheme(bits=8, group_size=None, is_symmetric=True)),
        ("pack-quantized", INT4 | {"strategy": None}, PACKED_4),
        ("pack-quantized", INT8 | {"strategy": None, "group_size": -1}, PackedIntScheme(
            bits=8, group_size=None, is_symmetric=True)),
        ("pack-quantized", INT4 | {"actorder": "weight"}, PACKED_4),
        ("pack-quantized", INT4 | {"actorder": "Static"}, PACKED_4),
        ("pack-quantized", INT4 | {"actorder": False}, PACKED_4),
        ("pack-quantized", INT4 | {"actorder": True}, PackedIntScheme(
            bits=4, group_size=32, is_symmetric=True, has_permutation=True)),
        ("pack-quantized", INT4 | {"actorder": "group"}, PackedIntScheme(
            bits=4, group_size=32, is_symmetric=True, has_permutation=True)),
        ("int-quantized", INT8, Int8Scheme(group_size=None, is_symmetric=True)),
        ("int-quantized", INT8 | {"strategy": "tensor"}, Int8Scheme(group_size=None, is_symmetric=True)),
        ("naive-quantized", INT4, Int8Scheme(group_size=32, is_symmetric=True)),
        ("float-quantized", FP8, Fp8Scheme(granularity="channel")),
        ("float-quantized", FP8 | {"strategy": "tensor"}, Fp8Scheme(granularity="tensor")),
        ("naive-quantized", FP8 | {"strategy": "block", "block_structure": [128, 128]}, Fp8Scheme(
            granularity="block", block_shape=(128, 128))),
        ("float-quantized", FP8 | {"strategy": "block", "block_structure": "64x128"}, Fp8Scheme(
            granularity="block", block_shape=(64, 128))),
        ("dense", FP8, None),
    ],
)  # fmt: skip
def test_format_and_weights_say_how_a_group_is_stored(file_format: str, weights: Json, scheme: object) -> None:
    quantization = read(group(weights), format=file_format)
    assert quantization.method == "compressed-tensors"
    assert quantization.scheme_of(DOWN_PROJ) == scheme


def test_static_activations_are_noted_and_dynamic_ones_are_not() -> None:
    for activations, is_static in ((STATIC, True), (STATIC | {"dynamic": True}, False), (None, False)):
        quantization = read(group(FP8, input_activations=activations), format="float-quantized")
        scheme = quantization.scheme_of(DOWN_PROJ)
        assert isinstance(scheme, Fp8Scheme)
        assert scheme.has_static_activations == is_static


def test_ignored_modules_are_plain_by_name_and_by_expression() -> None:
    quantization = read(group(INT4), ignore=["lm_head", "re:.*self_attn.*"])
    assert quantization.scheme_of("lm_head") is None
    assert quantization.scheme_of(Q_PROJ) is None
    assert quantization.scheme_of(DOWN_PROJ) == PACKED_4


def test_members_of_a_fused_layer_may_be_in_different_groups() -> None:
    quantization = read(
        group(INT4, "re:.*q_proj$"),
        group(FP8, "re:.*k_proj$", format="float-quantized"),
        group(None, "re:.*v_proj$"),
        format="mixed-precision",
    )
    assert quantization.scheme_of(Q_PROJ) == PACKED_4
    assert quantization.scheme_of(K_PROJ) == Fp8Scheme(granularity="channel")
    assert quantization.scheme_of("model.layers.0.self_attn.v_proj") is None
    assert quantization.scheme_of(DOWN_PROJ) is None


def test_name_goes_before_expression_and_expression_before_class() -> None:
    fp8, int8 = group(FP8, "re:.*self_attn", format="float-quantized"), group(INT8, K_PROJ, format="int-quantized")
    quantization = read(group(INT4), fp8, int8)
    assert quantization.scheme_of(Q_PROJ) == Fp8Scheme(granularity="channel")
    assert quantization.scheme_of(K_PROJ) == Int8Scheme(group_size=None, is_symmetric=True)
    assert quantization.scheme_of(K_PROJ + "2") == Fp8Scheme(granularity="channel")
    assert quantization.scheme_of(DOWN_PROJ) == PACKED_4


def test_groups_of_a_mixed_file_that_name_no_format_have_the_one_that_suits_them() -> None:
    activations = {"num_bits": 8, "dynamic": True, "strategy": "token"}
    quantization = read(
        group(INT4, "re:.*q_proj"),
        group(INT8, "re:.*k_proj", input_activations=activations),
        group(FP8, "re:.*down_proj", input_activations=activations),
        format="mixed-precision",
    )
    schemes = [type(quantization.scheme_of(module)) for module in (Q_PROJ, K_PROJ, DOWN_PROJ)]
    assert schemes == [PackedIntScheme, Int8Scheme, Fp8Scheme]


def test_8_bit_keys_and_values_are_no_fault() -> None:
    assert read(group(INT4), kv_cache_scheme={"num_bits": 8, "type": "float"}).scheme_of(Q_PROJ) == PACKED_4


@pytest.mark.parametrize(
    ("weights", "keys", "message"),
    [
        (FP8, {"format": "nvfp4-pack-quantized"}, r"quantization_config\.format is 'nvfp4-pack-quantized'; readable"),
        (INT4, {"format": "marlin-24"}, r"format is 'marlin-24'"),
        (INT4, {"sparsity_config": {"format": "sparse-24-bitmask"}}, r"sparsity_config\.format is 'sparse-24-bitmask'"),
        (INT4, {"transform_config": {"config_groups": {"R1": {}}}}, r"transform_config asks for rotations"),
        (INT4, {"kv_cache_scheme": {"num_bits": 8, "type": "int"}}, r"kv_cache_scheme asks"),
        (INT4 | {"num_bits": 3}, {}, r"config_groups\.group_0\.weights\.num_bits is 3"),
        (INT4 | {"type": "float"}, {}, r"weights\.type is 'float', which pack-quantized never holds"),
        (INT4 | {"group_size": None}, {}, r"lacks the key .*weights\.group_size"),
        (INT4 | {"strategy": "tensor_group"}, {}, r"weights\.strategy is 'tensor_group'"),
        (INT8 | {"actorder": "group"}, {}, r"weights\.actorder gives channels to groups"),
        (INT4 | {"actorder": "channel"}, {}, r"weights\.actorder is 'channel'; readable are group, dynamic, weight"),
        (INT4 | {"actorder": 1.5}, {}, r"weights\.actorder is 1\.5"),
        (FP8 | {"strategy": "block", "block_structure": "128x"}, {"format": "float-quantized"},
         r"block_structure must be a block's rows and columns, like \[128, 128\], is '128x'"),
        (INT8 | {"dynamic": True}, {}, r"weights\.dynamic must be false"),
        (FP8 | {"num_bits": 4}, {"format": "float-quantized"}, r"weights\.num_bits is 4; readable floats have 8"),
        (FP8 | {"strategy": "group"}, {"format": "float-quantized"}, r"weights\.strategy is 'group'"),
        (FP8 | {"strategy": "block"}, {"format": "float-quantized"}, r"lacks the key .*block_structure"),
        (FP8 | {"symmetric": False}, {"format": "float-quantized"}, r"weights\.symmetric must be true"),
        (INT8 | {"num_bits": 16}, {"format": "int-quantized"}, r"weights\.num_bits is 16"),
        (INT4, {"ignore": ["re:("]}, r"ignore holds 're:\('"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_its_key(weights: Json, keys: Json, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(group(weights), **keys)


def test_group_without_targets_or_with_a_broken_expression_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"config_groups\.group_0 names no targets"):
        read({"weights": INT4})
    with pytest.raises(ConfigError, match=r"group_0\.targets holds 're:\['"):
        read(group(INT4, "re:["))
