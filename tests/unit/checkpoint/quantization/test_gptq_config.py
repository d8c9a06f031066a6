"""quantization_config of GPTQ and AWQ checkpoints, in the spellings of their tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagewire.checkpoint.json_reader import JSONReader
from pagewire.checkpoint.quantization.quantization_config import QuantizationConfig
from pagewire.checkpoint.quantization.read_config import read_quantization
from pagewire.checkpoint.quantization.schemes import AWQScheme, GPTQScheme
from pagewire.ipc.errors import ConfigError

DOWN = "model.layers.0.mlp.down_proj"


def read(method: str, **keys: Any) -> QuantizationConfig:
    stated = {"quant_method": method, **keys}
    config = read_quantization(JSONReader(Path("config.json"), {"quantization_config": stated}))
    assert config is not None
    assert config.method == method
    return config


def gptq(**keys: Any) -> QuantizationConfig:
    return read("gptq", **{"bits": 4, "group_size": 128, **keys})


def awq(**keys: Any) -> QuantizationConfig:
    return read("awq", **{"bits": 4, "group_size": 128, **keys})


@pytest.mark.parametrize(("stated", "group_size"), [(-1, None), (32, 32), (64, 64), (128, 128), (96, 96), (None, 128)])
@pytest.mark.parametrize(("checkpoint_format", "zero_offset"), [("gptq", 1), ("gptq_v2", 0), (None, None)])
def test_keys_of_gptq_are_read(
    stated: int | None, group_size: int | None, checkpoint_format: str | None, zero_offset: int | None
) -> None:
    config = gptq(bits=8, group_size=stated, sym=False, desc_act=True, checkpoint_format=checkpoint_format)
    expected = GPTQScheme(bits=8, group_size=group_size, is_symmetric=False, zero_offset=zero_offset)
    assert config.default == config.scheme_of(DOWN) == expected


def test_gptq_is_symmetric_where_it_does_not_say() -> None:
    assert gptq().default == GPTQScheme(bits=4, group_size=128, is_symmetric=True, zero_offset=None)


def test_keys_of_awq_are_read_in_both_spellings() -> None:
    for keys in (
        {"bits": 4, "group_size": 64, "version": "gemm"},
        {"w_bit": 4, "q_group_size": 64, "version": "GEMM", "zero_point": True},
    ):
        assert read("awq", **keys).scheme_of(DOWN) == AWQScheme(group_size=64)


@pytest.mark.parametrize(
    ("config", "keys", "message"),
    [
        (gptq, {"bits": 3}, r"bits is 3; .*4 or 8"),
        (gptq, {"bits": None}, r"lacks the key quantization_config\.bits"),
        (gptq, {"group_size": 48}, r"group_size is 48.*multiple of 32.*Quantize"),
        (gptq, {"group_size": 0}, r"group_size is 0"),
        (gptq, {"checkpoint_format": "marlin"}, r"checkpoint_format is 'marlin'; readable are gptq, gptq_v2"),
        (gptq, {"dynamic": {"-:(": {}}}, r"dynamic holds '-:\(', which is no regular expression"),
        (gptq, {"dynamic": {".*": {"bits": 2}}}, r"bits is 2"),
        (gptq, {"modules_in_block_to_quantize": [1]}, r"modules_in_block_to_quantize must be a list"),
        (awq, {"bits": 8}, r"bits is 8; AWQ weights have 4 bits"),
        (awq, {"version": "gemv"}, r"version is 'gemv'; readable is 'gemm' alone"),
        (awq, {"version": "exllama"}, r"version is 'exllama'"),
        (awq, {"zero_point": False}, r"zero_point is false"),
        (awq, {"group_size": 48}, r"group_size is 48"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(config: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**keys)


@pytest.mark.parametrize("config", [gptq, awq])
def test_output_layer_is_plain_unless_said(config: Any) -> None:
    assert config().scheme_of("lm_head") is None
    assert config(lm_head=False).scheme_of("lm_head") is None
    assert config(lm_head=True).scheme_of("lm_head") == config().scheme_of(DOWN)
    assert config(lm_head=True, modules_to_not_convert=["lm_head"]).scheme_of("lm_head") is None
    assert gptq(lm_head=True, modules_in_block_to_quantize=["q_proj"]).scheme_of("lm_head") is not None


@pytest.mark.parametrize("config", [gptq, awq])
@pytest.mark.parametrize(
    "entry", ["model.layers.1.", "model.layers.1.mlp.gate_proj", "mlp.gate", "gate_proj", "layers.1.mlp"]
)
def test_modules_that_are_not_converted_are_given_whole_by_prefix_or_by_any_part(config: Any, entry: str) -> None:
    quantization = config(modules_to_not_convert=["lm_head", entry])
    assert quantization.scheme_of("model.layers.1.mlp.gate_proj") is None
    assert quantization.scheme_of("model.layers.0.self_attn.q_proj") is not None
    assert quantization.scheme_of(DOWN) is not None


def test_dynamic_rules_skip_and_override_in_their_order() -> None:
    config = gptq(
        checkpoint_format="gptq_v2",
        dynamic={
            r"-:.*\.0\..*q_proj": {},
            r"+:.*\.0\.": {"bits": 8, "group_size": -1},
            r".*\.1\.": {"sym": False},
            r".*\.1\..*k_proj": {"bits": 8},
        },
    )
    default = GPTQScheme(bits=4, group_size=128, is_symmetric=True, zero_offset=0)
    wide = GPTQScheme(bits=8, group_size=None, is_symmetric=True, zero_offset=0)
    assert config.scheme_of("model.layers.0.self_attn.q_proj") is None
    assert config.scheme_of("model.layers.0.self_attn.k_proj") == wide
    for name in ("q_proj", "k_proj"):
        asymmetric = GPTQScheme(bits=4, group_size=128, is_symmetric=False, zero_offset=0)
        assert config.scheme_of(f"model.layers.1.self_attn.{name}") == asymmetric
    assert config.scheme_of("model.layers.2.self_attn.k_proj") == default


def test_modules_in_blocks_that_are_not_listed_are_plain() -> None:
    for listed in (["self_attn.q_proj", "mlp.up_proj"], [["self_attn.q_proj"], ["mlp.up_proj"]]):
        config = gptq(modules_in_block_to_quantize=listed)
        assert config.scheme_of("model.layers.3.self_attn.q_proj") is not None
        assert config.scheme_of("model.layers.3.mlp.up_proj") is not None
        assert config.scheme_of("model.layers.3.mlp.down_proj") is None
