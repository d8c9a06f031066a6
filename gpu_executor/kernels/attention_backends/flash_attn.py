"""FlashAttention's paged attention (package flash-attn, version 2.6 and up).

Source: FlashAttention-2, Dao 2023 (arXiv 2307.08691).
"""

from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor

from pagewire.ipc.errors import ConfigError

from ...batch.forward_metadata import ForwardMetadata
from ...kv_cache_spec import LayerKVCache
from .base import PARAM, import_library

_BLOCK_MULTIPLE = 256
_MAX_HEAD_DIM = 256


class FlashAttention:
    """Attention by `flash_attn_varlen_func`, which takes mixed decodes and chunks.

    Raises:
        ConfigError: flash-attn is not installed, does not load, or is too old.
    """

    def __init__(self) -> None:
        self._attend = import_library("flash_attn", "flash_attn", "flash-attn").flash_attn_varlen_func
        missing = {"block_table", "softcap"} - inspect.signature(self._attend).parameters.keys()
        if missing:
            raise ConfigError(
                "--attention-backend flash_attn needs flash-attn 2.6 or newer: flash_attn_varlen_func of the one"
                f" installed does not take {', '.join(sorted(missing))}. `pip install -U flash-attn`, or leave it out"
                " for the Triton kernels.",
                param=PARAM,
            )
        # What a step's layers share, made by the first of them.
        self._metadata: ForwardMetadata | None = None
        self._key_start_loc = torch.empty(0, dtype=torch.int32)

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
        """See `AttentionBackend.attend`."""
        _check(query, kv_cache, metadata.block_size)
        if metadata is not self._metadata:
            self._metadata = metadata
            self._key_start_loc = F.pad(metadata.seq_lens.cumsum(0, dtype=torch.int32), (1, 0))
        output: Tensor = self._attend(
            query,
            # The library takes tokens before heads; strides tell it where they are.
            kv_cache.key.transpose(1, 2),
            kv_cache.value.transpose(1, 2),
            cu_seqlens_q=metadata.query_start_loc,
            cu_seqlens_k=self._key_start_loc,
            max_seqlen_q=metadata.max_query_len,
            max_seqlen_k=metadata.max_seq_len,
            softmax_scale=scale,
            causal=True,
            window_size=(-1, -1) if sliding_window is None else (sliding_window - 1, 0),
            softcap=soft_cap or 0.0,
            block_table=metadata.block_tables,
        )
        return output


def _check(query: Tensor, kv_cache: LayerKVCache, block_size: int) -> None:
    reason = None
    if query.dtype not in (torch.float16, torch.bfloat16):
        reason = f"takes float16 and bfloat16, not {query.dtype}: give --dtype"
    elif kv_cache.key.dtype != query.dtype:
        reason = f"reads a cache of the model's dtype, not {kv_cache.key.dtype}: leave --kv-cache-dtype out"
    elif block_size % _BLOCK_MULTIPLE:
        reason = f"takes blocks of {_BLOCK_MULTIPLE} tokens, not {block_size}: give --block-size {_BLOCK_MULTIPLE}"
    elif query.shape[2] > _MAX_HEAD_DIM:
        reason = f"takes heads of up to {_MAX_HEAD_DIM} channels, not {query.shape[2]}: leave --attention-backend out"
    if reason is not None:
        raise ConfigError(f"--attention-backend flash_attn {reason}.", param=PARAM)
