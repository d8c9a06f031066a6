"""How a checkpoint's linear layers are packed, whatever method wrote it and wherever that stands."""

from __future__ import annotations

from collections.abc import Callable

from ..json_reader import JSONReader, read_json_object
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
# What AutoGPTQ and AutoAWQ wrote beside config.json before it held a quantization_config, the commoner first.
SEPARATE_FILES = ("quantize_config.json", "quant_config.json")
# Keys that AutoGPTQ never wrote.
_AWQ_KEYS = ("w_bit", "q_group_size", "version")


def read_quantization(config: JSONReader) -> QuantizationConfig | None:
    """Read how a checkpoint's linear layers are packed; None if they are not.

    Args:
        config: config.json. Where it says nothing of it, a file of its own beside it counts: see `SEPARATE_FILES`.

    Raises:
        ConfigError: if the method, or what its keys say, is not supported. The message names the file and the key.
    """
    stated = config.get_object("quantization_config") or config.get_object("compression_config")
    if stated is None:
        return _read_separate_file(config)
    method = stated.get_str("quant_method")
    if method is None:
        raise stated.missing("quant_method")
    return _read_as(method, stated)


def _read_separate_file(config: JSONReader) -> QuantizationConfig | None:
    paths = [config.path.with_name(name) for name in SEPARATE_FILES]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    stated = read_json_object(path)
    # Those files held the keys alone, without a name for the method: each tool read its own.
    is_awq = any(stated.data.get(key) is not None for key in _AWQ_KEYS)
    return _read_as(stated.get_str("quant_method") or ("awq" if is_awq else "gptq"), stated)


def _read_as(method: str, stated: JSONReader) -> QuantizationConfig:
    reader = _READERS.get(method)
    if reader is None:
        raise stated.fault("quant_method", f"is {method!r}; readable are {', '.join(_READERS)}")
    return reader(stated)
