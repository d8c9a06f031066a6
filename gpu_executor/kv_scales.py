"""What keys and values are divided by before an 8-bit KV cache rounds them, and which numbers hold."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch

from pagewire.ipc.errors import ConfigError

logger = logging.getLogger(__name__)


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
