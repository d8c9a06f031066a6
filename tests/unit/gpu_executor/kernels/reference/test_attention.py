from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

from pagewire.checkpoint.model_config import LayerKind
from pagewire.gpu_executor.kernels.reference.kv_cache import round_to_8_bits
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.kv_cache_spec import KVCacheSpec, LayerKVCache
from tests.support.paged import Chunk, nan_filled_cache, paged_step
from tests.support.paged_requests import PagedRequests, reference_attention

# query heads, KV heads, head_dim: grouped, multi-head, one KV head for many, groups that don't divide a tile.
HEADS = [(4, 2, 16), (9, 3, 64), (3, 3, 6), (14, 2, 24), (20, 1, 40)]
LENGTHS = [1, 16, 63, 64, 65, 130, 200]


class Requests:
    """Random keys, values and queries of some requests, in scattered blocks of one NaN-filled cache."""

    def __init__(
        self, heads: tuple[int, int, int], *, block_size: int = 16, kv_dtype: torch.dtype = torch.float32
    ) -> None:
        self.num_heads, self.num_kv_heads, self.head_dim = heads
        self.block_size = block_size
        generator = torch.Generator().manual_seed(0)
        self.queries = [torch.randn(n, self.num_heads, self.head_dim, generator=generator) for n in LENGTHS]
        kv_shape = (self.num_kv_heads, self.head_dim)
        self.keys = [torch.randn(n, *kv_shape, generator=generator).to(kv_dtype) for n in LENGTHS]
        self.values = [torch.randn(n, *kv_shape, generator=generator).to(kv_dtype) for n in LENGTHS]
        blocks = list(range(sum(-(-n // block_size) for n in LENGTHS) + 2))
        random.Random(0).shuffle(blocks)
        spec = KVCacheSpec(LayerKind.FULL, self.num_kv_heads, self.head_dim)
        self.cache = nan_filled_cache(spec, len(blocks), block_size=block_size, dtype=kv_dtype)
        self.block_ids = [[blocks.pop() for _ in range(-(-n // block_size))] for n in LENGTHS]
        self.ops = select_ops("reference")

    def attend(
        self, chunks: list[tuple[int, int, int]], window: int | None = None, cap: float | None = None
    ) -> list[torch.Tensor]:
        """Store and attend (request, start, number of tokens) chunks in one step; return each one's output."""
        step = paged_step([Chunk(self.block_ids[r], s, n) for r, s, n in chunks], self.block_size)
        cut = [(r, slice(s, s + n)) for r, s, n in chunks]
        key, value = (torch.cat([kv[r][part] for r, part in cut]) for kv in (self.keys, self.values))
        self.ops.store_kv(key, value, self.cache, step.slot_mapping)
        query = torch.cat([self.queries[r][part] for r, part in cut])
        out = self.ops.paged_attention(
            query, self.cache, step, scale=self.head_dim**-0.5, sliding_window=window, soft_cap=cap
        )
        return list(out.split([n for _, _, n in chunks]))

    def expected(self, request: int, window: int | None) -> torch.Tensor:
        """Return the attention of a whole request by torch's own dense product."""
        n = LENGTHS[request]
        position = torch.arange(n)
        visible = position <= position[:, None]
        if window is not None:
            visible &= position > position[:, None] - window
        q, k, v = (t[request].double().transpose(0, 1) for t in (self.queries, self.keys, self.values))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True).transpose(0, 1)

    def clear(self) -> None:
        """Poison the whole cache again."""
        self.cache = LayerKVCache(*(torch.full_like(part, torch.nan) for part in self.cache[:2]))


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("window", [None, 1, 17, 70])
def test_attention_equals_the_dense_product(heads: tuple[int, int, int], window: int | None) -> None:
    requests = Requests(heads)
    outputs = requests.attend([(r, 0, n) for r, n in enumerate(LENGTHS)], window)
    for request, output in enumerate(outputs):
        torch.testing.assert_close(output.double(), requests.expected(request, window), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("block_size", [8, 16, 48])
@pytest.mark.parametrize(
    ("heads", "window", "cap"),
    [(HEADS[0], None, None), (HEADS[1], 40, None), (HEADS[2], 70, None), (HEADS[3], None, None), (HEADS[2], 40, 2.0)],
)
def test_token_has_the_same_bits_in_any_batch_and_any_chunks(
    heads: tuple[int, int, int], window: int | None, cap: float | None, block_size: int, kv_dtype: torch.dtype
) -> None:
    requests = Requests(heads, block_size=block_size, kv_dtype=kv_dtype)
    alone = [requests.attend([(r, 0, n)], window, cap)[0] for r, n in enumerate(LENGTHS)]
    rng = random.Random(block_size)
    for largest in (5, 64):
        requests.clear()
        done = [0] * len(LENGTHS)
        pieces: list[list[torch.Tensor]] = [[] for _ in LENGTHS]
        while done != LENGTHS:
            chosen = [r for r, n in enumerate(LENGTHS) if done[r] < n and rng.random() < 0.8]
            chunks = [(r, done[r], min(LENGTHS[r] - done[r], rng.randint(1, largest))) for r in chosen]
            rng.shuffle(chunks)
            for (request, start, num_tokens), output in zip(
                chunks, requests.attend(chunks, window, cap) if chunks else [], strict=True
            ):
                pieces[request].append(output)
                done[request] = start + num_tokens
        assert all(torch.equal(torch.cat(p), a) for p, a in zip(pieces, alone, strict=True))


def test_keys_are_read_as_the_cache_stores_them() -> None:
    requests = Requests(HEADS[0], kv_dtype=torch.float32)
    rounded = Requests(HEADS[0], kv_dtype=torch.float16)
    for key, value in zip(requests.keys, requests.values, strict=True):
        key.copy_(key.half()), value.copy_(value.half())
    assert torch.equal(requests.attend([(5, 0, 130)])[0], rounded.attend([(5, 0, 130)])[0])


@pytest.mark.parametrize("window", [1, 8, 16, 17, 64])
def test_window_ends_exactly_before_the_last_of_its_keys(window: int) -> None:
    request, last = 5, LENGTHS[5] - 1
    outputs = []
    for changed in (None, last - window, last - window + 1):
        requests = Requests(HEADS[0])
        if changed is not None:
            requests.values[request][changed] += 1
        outputs.append(requests.attend([(request, 0, last + 1)], window)[0][last])
    plain, beyond, within = outputs
    assert torch.equal(plain, beyond)
    assert not torch.equal(plain, within)


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_8_bit_keys_and_values_are_multiplied_by_their_scales(kv_dtype: torch.dtype) -> None:
    key_scale, value_scale = 0.03, 1.7
    requests = PagedRequests([70], (4, 2, 32), kv_dtype=kv_dtype, scales=(key_scale, value_scale))
    query, cache, step = requests.step([(0, 60, 10)])
    for rows, scale in ((requests.keys, key_scale), (requests.values, value_scale)):
        rows[0] = round_to_8_bits(rows[0], kv_dtype, scale).float() * scale
    output = reference_attention(query, cache, step, scale=requests.scale, window=None, cap=None)
    torch.testing.assert_close(output, _dense(requests, None)[60:].float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cap", [0.3, 5.0, 1000.0])
def test_soft_cap_bounds_the_scaled_logits(cap: float) -> None:
    requests = PagedRequests([70], (4, 2, 32))
    query, cache, step = requests.step([(0, 0, 70)])
    output = reference_attention(query, cache, step, scale=requests.scale, window=None, cap=cap)
    torch.testing.assert_close(output, _dense(requests, cap).float(), atol=1e-5, rtol=1e-5)
    if cap < 1000:
        uncapped = reference_attention(query, cache, step, scale=requests.scale, window=None, cap=None)
        assert not torch.allclose(output, uncapped, atol=1e-3)


def _dense(requests: PagedRequests, cap: float | None) -> torch.Tensor:
    """Return the attention of the first request, written out in float64."""
    query, key, value = (
        rows[0].double().transpose(0, 1) for rows in (requests.queries, requests.keys, requests.values)
    )
    group = len(query) // len(key)
    key, value = key.repeat_interleave(group, dim=0), value.repeat_interleave(group, dim=0)
    logits = query @ key.transpose(1, 2) * requests.scale
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    hidden = torch.ones(logits.shape[1:], dtype=torch.bool).triu(1)
    return (logits.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ value).transpose(0, 1)
