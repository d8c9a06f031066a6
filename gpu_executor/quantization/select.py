"""How a backend holds a checkpoint's linear layers."""

from __future__ import annotations

from pagewire.checkpoint.model_config import ModelConfig

from ..kernels.ops import Ops
from .base import QuantMethod
from .dense import DenseMethod
from .grouped import GroupedMethod


def select_quant_method(config: ModelConfig, ops: Ops) -> QuantMethod:
    """Return the method by which the checkpoint's linear layers are held for a backend."""
    # Matrices that all get the activations' dtype go straight to their place on the device, row by row.
    is_packed = config.dtype == "quantized" or config.quantization is not None
    is_kept = ops.has_float32_activations or is_packed
    return GroupedMethod(ops) if ops.keeps_quantized_weights and is_kept else DenseMethod(ops)
