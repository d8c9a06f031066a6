"""From the tensors of a quantized checkpoint to those that its model asks for: one a weight, whatever the packing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pagewire.checkpoint.quantization.quantization_config import QuantizationConfig
from pagewire.checkpoint.quantization.schemes import (
    AWQScheme,
    Fp8Scheme,
    GPTQScheme,
    Int8Scheme,
    PackedIntScheme,
    RoundedScheme,
    Scheme,
)
from pagewire.ipc.errors import ConfigError

from ..checkpoint_tensor import CheckpointTensor
from ..safetensors import SafetensorsTensor
from .awq import read_awq
from .fp8 import read_fp8
from .gptq import read_gptq
from .int8 import read_int8
from .module_parts import ModuleParts
from .packed_int import read_packed_int
from .rounded import read_rounded

# The reader of each packing; Any: each takes its own scheme.
_READERS: dict[type[Scheme], Callable[[ModuleParts, Any], CheckpointTensor]] = {
    AWQScheme: read_awq,
    Fp8Scheme: read_fp8,
    GPTQScheme: read_gptq,
    Int8Scheme: read_int8,
    PackedIntScheme: read_packed_int,
    RoundedScheme: read_rounded,
}
# Names of tensors that only a quantized layer has, in any packing; an error names the first of them that is there.
PACKED_NAMES = (
    "qweight", "qzeros", "scales", "g_idx",
    "weight_packed", "weight_scale", "weight_scale_inv", "weight_shape", "weight_zero_point", "weight_g_idx",
)  # fmt: skip


def assemble(
    tensors: Iterable[SafetensorsTensor],
    quantization: QuantizationConfig,
    linear_modules: frozenset[str],
    location: str,
) -> list[CheckpointTensor]:
    """Put the tensors of each quantized layer together; all others stay as they are, in their order.

    Args:
        tensors: all of the checkpoint.
        quantization: which layers are quantized, and how.
        linear_modules: canonical names of the model's linear layers.
        location: the checkpoint's directory, for error texts.

    Raises:
        ConfigError: if a layer lacks a tensor, or has one that its packing does not allow. The message names it.
    """
    by_module: dict[str, dict[str, SafetensorsTensor]] = {}
    for tensor in tensors:
        module, _, name = tensor.name.rpartition(".")
        by_module.setdefault(module, {})[name] = tensor
    assembled: list[CheckpointTensor] = []
    for module, members in by_module.items():
        scheme = quantization.scheme_of(module) if module in linear_modules else None
        if scheme is None:
            _refuse_packed(module, members, quantization)
            assembled += members.values()
            continue
        parts = ModuleParts(module, location, members)
        assembled.append(_READERS[type(scheme)](parts, scheme))
        assembled += parts.rest()
    return assembled


def _refuse_packed(module: str, members: dict[str, SafetensorsTensor], quantization: QuantizationConfig) -> None:
    packed = [name for name in PACKED_NAMES if name in members]
    if packed:
        raise ConfigError(
            f"{members[packed[0]].source}: belongs to a quantized layer, but by the checkpoint's quantization_config "
            f"({quantization.method}) {module} is not quantized"
        )
