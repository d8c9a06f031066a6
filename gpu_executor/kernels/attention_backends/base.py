"""What an attention library has to give, and how it is imported."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from torch import Tensor

from pagewire.ipc.errors import ConfigError

from ...batch.forward_metadata import ForwardMetadata
from ...kv_cache_spec import LayerKVCache

PARAM = "attention_backend"


class AttentionBackend(Protocol):
    """A library's paged attention."""

    def attend(
        self,
        query: Tensor,
        kv_cache: LayerKVCache,
        metadata: ForwardMetadata,
        *,
        scale: float,
        sliding_window: int | None,
        soft_cap: float | None,
    ) -> Tensor:
        """Attend each scheduled token over its request's paged KV cache; see `Ops.paged_attention`.

        Args:
            query: [num_tokens, num_heads, head_dim], float16 or bfloat16.
            kv_cache: [num_blocks, num_kv_heads, block_size, head_dim], contiguous.
            metadata: the step.
            scale: logit multiplier.
            sliding_window: keys a token sees, its own included; None: all before it.
            soft_cap: bound of the scaled logits; None: unbounded.

        Raises:
            ConfigError: the library does not have what is asked for. The first step of a start, which measures memory,
                asks for all that later ones do.
        """


def import_library(backend: str, module: str, package: str) -> Any:  # a module without types
    """Import an attention library.

    Raises:
        ConfigError: it is not installed, or does not load.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as exc:
        raise ConfigError(
            f"--attention-backend {backend} can't be loaded ({exc}): `pip install {package}`, or leave it out for the "
            "Triton kernels.",
            param=PARAM,
        ) from exc
