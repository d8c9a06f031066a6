"""quant_method "fp8": what config.json may say, and that everything else is refused by its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagewire.checkpoint.json_reader import JSONReader
from pagewire.checkpoint.quantization.quantization_config import QuantizationConfig
from pagewire.checkpoint.quantization.read_config import read_quantization
from pagewire.checkpoint.quantization.schemes import Fp8Scheme, RoundedScheme
from pagewire.ipc.errors import ConfigError

DOWN_PROJ = "model.layers.0.mlp.down_proj"


def read(**keys: Any) -> QuantizationConfig:
    config = JSONReader(Path("config.json"), {"quantization_config": {"quant_method": "fp8", **keys}})
    quantization = read_quantization(config)
    assert quantization is not None
    return quantization


@pytest.mark.parametrize(
    ("keys", "scheme"),
    [
        ({}, Fp8Scheme(granularity="tensor")),
        ({"activation_scheme": "dynamic", "fmt": "e4m3"}, Fp8Scheme(granularity="tensor")),
        ({"activation_scheme": "static"}, Fp8Scheme(granularity="tensor", has_static_activations=True)),
        ({"weight_block_size": [128, 128]}, Fp8Scheme(granularity="block", block_shape=(128, 128))),
        ({"is_checkpoint_fp8_serialized": False}, RoundedScheme(to="fp8")),
        ({"is_checkpoint_fp8_serialized": False, "activation_scheme": "dynamic"}, RoundedScheme(to="fp8")),
    ],
)
def test_keys_say_how_linear_layers_are_stored(keys: dict[str, Any], scheme: object) -> None:
    quantization = read(**keys)
    assert quantization.method == "fp8"
    assert quantization.scheme_of(DOWN_PROJ) == scheme


@pytest.mark.parametrize("key", ["ignored_layers", "modules_to_not_convert"])
def test_listed_modules_and_the_output_layer_are_plain(key: str) -> None:
    quantization = read(**{key: ["model.layers.0.mlp"]})
    assert quantization.scheme_of(DOWN_PROJ) is None
    assert quantization.scheme_of("model.layers.1.mlp.down_proj") is not None
    assert quantization.scheme_of("lm_head") is None


@pytest.mark.parametrize("is_serialized", [True, False])
def test_lists_of_plain_modules_count_whether_weights_are_stored_or_rounded(is_serialized: bool) -> None:
    skipping = {"is_checkpoint_fp8_serialized": is_serialized, "ignored_layers": ["model.layers.0.mlp"]}
    assert read(**skipping).scheme_of(DOWN_PROJ) is None
    assert read(**skipping).scheme_of("lm_head") is None
    with_output = read(**skipping, lm_head=True)
    assert with_output.scheme_of("lm_head") == with_output.default is not None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"fmt": "e5m2"}, r"quantization_config\.fmt is 'e5m2'"),
        ({"activation_scheme": "none"}, r"activation_scheme is 'none'; readable are dynamic, static"),
        ({"weight_block_size": 128}, r"weight_block_size must be a block's rows and columns"),
        ({"weight_block_size": [128, 0]}, r"weight_block_size must be"),
        ({"weight_block_size": [1, 2, 3]}, r"weight_block_size must be"),
        ({"weight_block_size": [128, 128], "activation_scheme": "static"}, r"activation_scheme is 'static'"),
        (
            {"weight_block_size": [128, 128], "is_checkpoint_fp8_serialized": False},
            r"weight_block_size is \[128, 128\], but is_checkpoint_fp8_serialized is false",
        ),
        (
            {"activation_scheme": "static", "is_checkpoint_fp8_serialized": False},
            r"activation_scheme is 'static', but is_checkpoint_fp8_serialized is false",
        ),
        ({"lm_head": "yes"}, r"lm_head must be true or false"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**keys)
