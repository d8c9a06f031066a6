"""Writing a step's keys and values into their slots of the paged cache.

Bound by memory: a program takes some heads of one token, reads their channels in one piece and writes each head's in
one piece.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ...kv_cache_spec import LayerKVCache
from .fp8 import E4M3, E5M2, NO_FP8, as_bits, fp8_format, to_fp8
from .launches.attention import STORE_KV
from .launches.row import CompileCase, LaunchRow, pick

_NO_FP8 = tl.constexpr(NO_FP8)


@triton.jit
def _rounded(values: tl.tensor, cache: tl.tensor, scale: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    if FORMAT == _NO_FP8:
        rounded = values.to(cache.dtype.element_ty)
    else:
        rounded = to_fp8(tl.div_rn(values.to(tl.float32), scale), FORMAT)
    return rounded


@triton.jit(do_not_specialize_on_alignment=["slot_mapping"])
def store_kv_kernel(
    key: tl.tensor,
    value: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    slot_mapping: tl.tensor,
    key_token_stride: tl.tensor,
    value_token_stride: tl.tensor,
    key_scale: tl.tensor,
    value_scale: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    FORMAT: tl.constexpr,
) -> None:
    """Write BLOCK_HEADS heads of one token. Programs: (num_tokens, head tiles).

    key and value are [num_tokens, NUM_KV_HEADS, HEAD_DIM] with a token stride of their own; the caches are
    [num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM], 8-bit floats as uint8; slot_mapping is [num_tokens] int64.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    if slot < 0:
        return
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    channels = tl.arange(0, BLOCK_DIM)
    mask = (heads < NUM_KV_HEADS)[:, None] & (channels < HEAD_DIM)[None, :]
    read = heads[:, None] * HEAD_DIM + channels[None, :]
    head_rows = (slot // BLOCK_SIZE * NUM_KV_HEADS + heads) * BLOCK_SIZE + slot % BLOCK_SIZE
    written = head_rows[:, None] * HEAD_DIM + channels[None, :]
    keys = tl.load(key + token * key_token_stride + read, mask=mask, other=0.0)
    values = tl.load(value + token * value_token_stride + read, mask=mask, other=0.0)
    tl.store(key_cache + written, _rounded(keys, key_cache, key_scale, FORMAT), mask=mask)
    tl.store(value_cache + written, _rounded(values, value_cache, value_scale, FORMAT), mask=mask)


def store_kv(key: Tensor, value: Tensor, kv_cache: LayerKVCache, slot_mapping: Tensor) -> None:
    """Write each token's key and value into its slot; see `Ops.store_kv`.

    Args:
        key: [num_tokens, num_kv_heads, head_dim], float16, bfloat16 or float32; a view whose heads lie side by side is
            read where it is. `value` alike.
        value: see `key`.
        kv_cache: [num_blocks, num_kv_heads, block_size, head_dim], contiguous, any float dtype.
        slot_mapping: [num_tokens] int64; a token of slot -1 is skipped.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    if num_tokens == 0:
        return
    key, value = _heads_side_by_side(key), _heads_side_by_side(value)
    row = pick(STORE_KV)
    constants = _constants(row, num_kv_heads, head_dim, kv_cache.key.shape[2], fp8_format(kv_cache.key.dtype))
    store_kv_kernel[(num_tokens, triton.cdiv(num_kv_heads, constants["BLOCK_HEADS"]))](
        key,
        value,
        as_bits(kv_cache.key),
        as_bits(kv_cache.value),
        slot_mapping,
        key.stride(0),
        value.stride(0),
        kv_cache.key_scale,
        kv_cache.value_scale,
        **constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )


def _heads_side_by_side(rows: Tensor) -> Tensor:
    is_as_wanted = rows.stride(2) == 1 and rows.stride(1) == rows.shape[2]
    return rows if is_as_wanted else rows.contiguous()


def _constants(row: LaunchRow, num_kv_heads: int, head_dim: int, block_size: int, fp8: int) -> dict[str, int]:
    block_dim = triton.next_power_of_2(head_dim)
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": block_size,
        "BLOCK_HEADS": min(triton.next_power_of_2(num_kv_heads), max(1, row.constants["ELEMENTS"] // block_dim)),
        "BLOCK_DIM": block_dim,
        "FORMAT": fp8,
    }


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: a Llama-3-8B's heads, kept as they are and in 8 bits."""
    return [
        CompileCase(
            label=f"{dtype} into {cache}",
            function=store_kv_kernel,
            signature=dict.fromkeys(("key", "value"), f"*{dtype}")
            | dict.fromkeys(("key_cache", "value_cache"), f"*{cache}")
            | {"slot_mapping": "*i64:8", "key_token_stride": "i32:16", "value_token_stride": "i32:16"}
            | dict.fromkeys(("key_scale", "value_scale"), "fp32"),
            constants=_constants(row, num_kv_heads=8, head_dim=128, block_size=16, fp8=fp8),
            has_dot=False,
        )
        for dtype, cache, fp8 in (("bf16", "bf16", NO_FP8), ("bf16", "u8", E4M3), ("fp16", "u8", E5M2))
    ]
