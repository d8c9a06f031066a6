"""Where a checkpoint says how it is quantized: config.json, or the file of its own that older tools wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagewire.checkpoint.json_reader import read_json_object
from pagewire.checkpoint.quantization.quantization_config import QuantizationConfig
from pagewire.checkpoint.quantization.read_config import read_quantization
from pagewire.checkpoint.quantization.schemes import AWQScheme, GPTQScheme, Scheme
from pagewire.ipc.errors import ConfigError

Json = dict[str, Any]  # Any: JSON values

# As AutoGPTQ 0.4 and AutoAWQ 0.1 wrote them.
AUTO_GPTQ: Json = {
    "bits": 4,
    "group_size": 64,
    "damp_percent": 0.01,
    "desc_act": True,
    "static_groups": False,
    "sym": False,
    "true_sequential": True,
    "model_name_or_path": None,
    "model_file_base_name": None,
}
AUTO_AWQ: Json = {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}
GPTQ = GPTQScheme(bits=4, group_size=64, is_symmetric=False, zero_offset=None)


def read(directory: Path, **files: Json) -> QuantizationConfig | None:
    for name, content in {"config": {}, **files}.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return read_quantization(read_json_object(directory / "config.json"))


@pytest.mark.parametrize(
    ("name", "content", "method", "scheme"),
    [
        ("quantize_config", AUTO_GPTQ, "gptq", GPTQ),
        ("quantize_config", AUTO_GPTQ | {"quant_method": "gptq"}, "gptq", GPTQ),
        ("quantize_config", AUTO_AWQ, "awq", AWQScheme(group_size=64)),
        ("quant_config", AUTO_AWQ, "awq", AWQScheme(group_size=64)),
    ],
)
def test_file_of_older_tools_says_it_where_config_json_does_not(
    tmp_path: Path, name: str, content: Json, method: str, scheme: Scheme
) -> None:
    quantization = read(tmp_path, **{name: content})
    assert quantization is not None
    assert quantization.method == method
    assert quantization.scheme_of("model.layers.0.mlp.down_proj") == scheme
    assert quantization.scheme_of("lm_head") is None


def test_config_json_goes_before_the_file_beside_it(tmp_path: Path) -> None:
    stated = {"quant_method": "awq", "bits": 4, "group_size": 32}
    quantization = read(tmp_path, config={"quantization_config": stated}, quantize_config=AUTO_GPTQ)
    assert quantization is not None
    assert quantization.default == AWQScheme(group_size=32)


def test_model_without_either_is_not_quantized(tmp_path: Path) -> None:
    assert read(tmp_path) is None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"quantize_config": AUTO_GPTQ | {"bits": 3}}, r"quantize_config\.json: bits is 3; .*4 or 8"),
        ({"quantize_config": {"quant_method": "marlin"}}, r"quantize_config\.json: quant_method is 'marlin'; readable"),
        ({"quant_config": AUTO_AWQ | {"version": "GEMV"}}, r"quant_config\.json: version is 'GEMV'"),
        ({"config": {"quantization_config": {"bits": 4}}}, r"config\.json: lacks the key .*quant_method"),
    ],
)
def test_what_is_not_supported_is_refused_by_file_and_key(tmp_path: Path, files: Json, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, **files)
