from __future__ import annotations

import msgspec

from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.quantization.quantization_config import QuantizationConfig
from pagewire.checkpoint.quantization.schemes import RoundedScheme
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.quantization.dense import DenseMethod
from pagewire.gpu_executor.quantization.grouped import GroupedMethod
from pagewire.gpu_executor.quantization.select import select_quant_method
from tests.support.tiny_model import tiny_checkpoint

FP8 = QuantizationConfig(method="fp8", default=RoundedScheme(to="fp8"))


class KeepingOps(ReferenceOps):
    """Kernels that take packed weights, and compute in the dtype of plain ones."""

    keeps_quantized_weights = True


def test_reference_unpacks_every_checkpoint() -> None:
    plain = load_model_config(tiny_checkpoint())
    quantized = msgspec.structs.replace(plain, quantization=FP8)
    for config in (plain, quantized):
        assert isinstance(select_quant_method(config, select_ops("reference")), DenseMethod)


def test_kernels_that_take_packed_weights_get_them_of_quantized_checkpoints_alone() -> None:
    plain = load_model_config(tiny_checkpoint())
    assert isinstance(select_quant_method(plain, KeepingOps()), DenseMethod)
    for change in ({"quantization": FP8}, {"dtype": "quantized"}):
        assert isinstance(select_quant_method(msgspec.structs.replace(plain, **change), KeepingOps()), GroupedMethod)
