"""quantization_config of a config.json, whatever method wrote it."""

from __future__ import annotations

from collections.abc import Callable

from ..json_reader import JSONReader
from .awq_config import read_awq_config
from .compressed_tensors_config import read_compressed_tensors
from .fp8_config import read_fp8
from .gptq_config import read_gptq_config
from .quantization_config import QuantizationConfig

# By quant_method; each reads its own keys.
_READERS: dict[str, Callable[[JSONReader], QuantizationConfig]] = {
    "awq": read_awq_config,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "gptq": read_gptq_config,
}


def read_quantization(config: JSONReader) -> QuantizationConfig | None:
    """Read how a checkpoint's linear layers are packed; None if they are not.

    Args:
        config: config.json.

    Raises:
        ConfigError: if the method, or what its keys say, is not supported. The message names the key.
    """
    stated = config.get_object("quantization_config") or config.get_object("compression_config")
    if stated is None:
        return None
    method = stated.get_str("quant_method")
    if method is None:
        raise stated.missing("quant_method")
    reader = _READERS.get(method)
    if reader is None:
        raise stated.fault("quant_method", f"is {method!r}; readable are {', '.join(_READERS)}")
    return reader(stated)
