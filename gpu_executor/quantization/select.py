"""Which quantization method a checkpoint asks for."""

from __future__ import annotations

from pagewire.checkpoint.model_config import ModelConfig
from pagewire.ipc.errors import ConfigError

from .base import QuantMethod
from .dense import DenseMethod


def select_quant_method(config: ModelConfig) -> QuantMethod:
    """Return the method that the checkpoint's linear layers use.

    Raises:
        ConfigError: if its quantization_config names a method that can't be loaded.
    """
    if config.quantization is None:
        return DenseMethod()
    name = config.quantization.get("quant_method", "unnamed")
    raise ConfigError(
        f"{config.model_path}: the checkpoint is quantized by method {name!r}, which can't be loaded yet; "
        "use an unquantized checkpoint or a GGUF file of the same model"
    )
