"""How a checkpoint's weights are stored, in two or three words."""

from __future__ import annotations

from .quantization_config import QuantizationConfig
from .schemes import AWQScheme, Fp8Scheme, GPTQScheme, Int8Scheme, PackedIntScheme, RoundedScheme, Scheme


def describe_quantization(quantization: QuantizationConfig) -> str:
    """Return it for people: "4-bit gptq", "fp8", "4-bit and 8-bit compressed-tensors"."""
    schemes = [quantization.default, *(rule.scheme for rule in quantization.rules)]
    numbers = dict.fromkeys(_numbers(scheme) for scheme in schemes if scheme is not None)
    words = " and ".join(numbers)
    return words if quantization.method in numbers else f"{words} {quantization.method}".strip()


def _numbers(scheme: Scheme) -> str:
    match scheme:
        case GPTQScheme() | PackedIntScheme():
            return f"{scheme.bits}-bit"
        case AWQScheme():
            return "4-bit"
        case Int8Scheme():
            return "int8"
        case Fp8Scheme():
            return "fp8"
        case RoundedScheme():
            return scheme.to
