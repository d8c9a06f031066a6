"""What --quantization asks for, beside what the checkpoint is."""

from __future__ import annotations

import msgspec

from pagewire.ipc.errors import ConfigError

from ..model_config import ModelConfig
from .quantization_config import QuantizationConfig
from .schemes import RoundedScheme
from .skip_rules import PLAIN_OUTPUT_LAYER

_ROUNDED = {
    "fp8": QuantizationConfig(method="fp8", default=RoundedScheme(to="fp8"), rules=(PLAIN_OUTPUT_LAYER,)),
    "int8": QuantizationConfig(method="int8", default=RoundedScheme(to="int8"), rules=(PLAIN_OUTPUT_LAYER,)),
}


def apply_requested(config: ModelConfig, requested: str | None) -> ModelConfig:
    """Return the configuration with the quantization that was asked for.

    Args:
        config: as the checkpoint states it.
        requested: --quantization; None: as it is stored. What names the checkpoint's own method changes nothing;
            "fp8" and "int8" round the linear layers of a plain safetensors checkpoint while it is loaded.

    Raises:
        ConfigError: if the checkpoint is of another method, or has none.
    """
    stored = "gguf" if config.file_format == "gguf" else config.quantization.method if config.quantization else None
    if requested is None or requested == stored:
        return config
    if stored is None and requested in _ROUNDED:
        return msgspec.structs.replace(config, quantization=_ROUNDED[requested])
    is_stored_as = f"is stored as {stored}" if stored else "is not quantized"
    remedy = "leave the flag out"
    if stored is None:
        remedy += f", or give {' or '.join(_ROUNDED)}, which round its weights while they are loaded"
    raise ConfigError(
        f"--quantization {requested}: {config.model_path} {is_stored_as}; {remedy}.", param="quantization"
    )
