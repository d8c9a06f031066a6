"""What a layer needs from the KV cache, before anybody allocates it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pagewire.checkpoint.model_config import LayerKind
from pagewire.ipc.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The KV cache of one layer. Layers with equal specs share block tables.

    Attributes:
        kind: FULL keeps every token; SLIDING reads only the last `sliding_window`.
        num_kv_heads: key (and value) heads a token stores on this rank.
        head_dim: channels of a head.
        sliding_window: keys a token sees, its own included; None for FULL.
    """

    kind: LayerKind
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None = None

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Return the bytes that one token's key and value take in this layer."""
        return 2 * self.num_kv_heads * self.head_dim * dtype.itemsize


class KVScales(NamedTuple):
    """What a layer's keys and values are divided by before an 8-bit cache rounds them; both finite and above 0."""

    key: float = 1.0
    value: float = 1.0


def choose_scales(stored: Sequence[KVScales | None], dtype: torch.dtype, location: str) -> list[KVScales]:
    """Return the scales that each layer's cache works with.

    An 8-bit cache takes the checkpoint's, and 1 if that has none at all; others need none.

    Args:
        stored: what the checkpoint holds, in layer order.
        dtype: of cached keys and values.
        location: the checkpoint, for error texts.

    Raises:
        ConfigError: if an 8-bit cache would get scales for some layers only: whoever measured them measured all.
    """
    missing = [layer for layer, scales in enumerate(stored) if scales is None]
    has_none, has_8_bits = len(missing) == len(stored), dtype.itemsize == 1
    if has_none or not has_8_bits:
        if has_8_bits:
            logger.info("the checkpoint has no scales for 8-bit keys and values; they are rounded as they come")
        elif not has_none:
            name = str(dtype).removeprefix("torch.")
            logger.info("the checkpoint's scales for 8-bit keys and values are not needed: they are kept in %s", name)
        return [KVScales()] * len(stored)
    if missing:
        raise ConfigError(
            f"{location}: the checkpoint has scales for the keys and values of some layers, but lacks "
            f"{', '.join(f'model.layers.{layer}.self_attn.k_scale' for layer in missing)}; complete it, or leave "
            "--kv-cache-dtype out."
        )
    return [scales for scales in stored if scales is not None]


class KVCacheShape(NamedTuple):
    """The shapes of one layer's paged tensors, as `Ops.kv_cache_shape` gives them."""

    key: tuple[int, ...]
    value: tuple[int, ...]


class LayerKVCache(NamedTuple):
    """The paged memory of one layer.

    Attributes:
        key: [num_blocks, ...], KV dtype, contiguous; `Ops.kv_cache_shape` says the rest.
        value: like `key`.
        key_scale: what stored keys are multiplied by when they are read (they are divided by it when they are stored,
            in float32); other than 1 for 8-bit caches alone.
        value_scale: likewise for values.
    """

    key: Tensor
    value: Tensor
    key_scale: float = 1.0
    value_scale: float = 1.0
