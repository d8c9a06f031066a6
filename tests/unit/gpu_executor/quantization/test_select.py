from __future__ import annotations

import msgspec
import pytest

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.quantization.dense import DenseMethod
from pagewire.gpu_executor.quantization.select import select_quant_method
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint


def test_plain_checkpoint_is_dense_and_a_quantized_one_is_refused_by_its_method() -> None:
    config = load_model_config(tiny_checkpoint())
    assert isinstance(select_quant_method(config, select_ops("reference")), DenseMethod)
    quantized = msgspec.structs.replace(config, quantization={"quant_method": "awq", "bits": 4})
    with pytest.raises(ConfigError, match="awq"):
        select_quant_method(quantized, select_ops("reference"))
