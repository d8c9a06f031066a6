"""Which quantization method a checkpoint asks for."""

from __future__ import annotations

from pagewire.checkpoint.model_config import ModelConfig
from pagewire.ipc.errors import ConfigError

from ..kernels.ops import Ops
from .base import QuantMethod
from .dense import DenseMethod
from .grouped import GroupedMethod


def select_quant_method(config: ModelConfig, ops: Ops) -> QuantMethod:
    """Return the method by which the checkpoint's linear layers are held for a backend.

    Raises:
        ConfigError: if its quantization_config names a method that can't be loaded.
    """
    if config.quantization is None:
        # Matrices that all get the activations' dtype go straight to their place on the device, row by row.
        is_kept = ops.has_float32_activations or config.dtype == "quantized"
        return GroupedMethod(ops) if ops.keeps_quantized_weights and is_kept else DenseMethod(ops)
    name = config.quantization.get("quant_method", "unnamed")
    raise ConfigError(
        f"{config.model_path}: the checkpoint is quantized by method {name!r}, which can't be loaded yet; "
        "use an unquantized checkpoint or a GGUF file of the same model"
    )
