"""The scales of 8-bit KV caches as checkpoints spell them, under one pair of names a layer.

A tool that calibrated a model leaves one number for a layer's keys and one for its values. What they are called:

| written by                      | keys                          | values                        |
|---------------------------------|-------------------------------|-------------------------------|
| compressed-tensors              | self_attn.k_scale             | self_attn.v_scale             |
| its first versions, Quark       | self_attn.k_proj.output_scale | self_attn.v_proj.output_scale |
| ModelOpt                        | self_attn.k_proj.k_scale      | self_attn.v_proj.v_scale      |
| the same, of fused projections  | self_attn.qkv_proj.k_scale    | self_attn.qkv_proj.v_scale    |
| vLLM                            | self_attn.attn.k_scale        | self_attn.attn.v_scale        |
| AutoFP8, one number for both    | self_attn.kv_scale            | self_attn.kv_scale            |

Source: the names that vLLM reads, https://github.com/vllm-project/vllm (maybe_remap_kv_scale_name).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from pagewire.ipc.errors import ConfigError

from .safetensors import SafetensorsTensor

_NAME = re.compile(
    r"""(?P<attention>model\.layers\.\d+\.self_attn)\.(?:
        (?:attn\.)?(?P<plain>[kv])_scale
        | (?P<projection>[kv])_proj\.(?:(?P=projection)_scale | output_scale)
        | qkv_proj\.(?P<fused>[kv])_scale
        | (?:attn\.)?(?P<both>kv)_scale
    )""",
    re.VERBOSE,
)


def with_canonical_scales(tensors: Iterable[SafetensorsTensor]) -> list[SafetensorsTensor]:
    """Rename the KV scales among a checkpoint's tensors; all others stay as they are, in their order.

    Returns:
        The tensors; a KV scale has the name "model.layers.N.self_attn.k_scale" or ".v_scale" and shape (). One that is
        for both is there twice.

    Raises:
        ConfigError: if a layer has two scales for its keys, or for its values, or one that is not a single number.
    """
    renamed: list[SafetensorsTensor] = []
    sources: dict[str, str] = {}
    for tensor in tensors:
        names = canonical_scale_names(tensor.name)
        for name in names:
            if name in sources:
                raise ConfigError(
                    f"{tensor.source}: is the scale that {sources[name]} is too ({name}); a layer has one for its keys "
                    "and one for its values"
                )
            sources[name] = tensor.source
            renamed.append(_as_scalar(tensor, name))
        if not names:
            renamed.append(tensor)
    return renamed


def canonical_scale_names(name: str) -> tuple[str, ...]:
    """Return what a tensor is called as a KV scale: one name, two if it is for keys and values, none if it is none."""
    match = _NAME.fullmatch(name)
    if match is None:
        return ()
    letters = match["plain"] or match["projection"] or match["fused"] or match["both"]
    return tuple(f"{match['attention']}.{letter}_scale" for letter in letters)


def _as_scalar(tensor: SafetensorsTensor, name: str) -> SafetensorsTensor:
    if math.prod(tensor.shape) != 1:
        raise ConfigError(
            f"{tensor.source}: has shape {list(tensor.shape)}, but a KV scale is one number a layer: scales by head or "
            "by channel can't be used"
        )
    return tensor.presented_as(name, ())
