"""Compiled attention gives the reference's numbers, and a token the same bits however its step was made up."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from pagewire.checkpoint.model_config import LayerKind
from pagewire.gpu_executor.batch.forward_metadata import ForwardMetadata
from pagewire.gpu_executor.kernels.cpu.cpu_ops import CpuOps
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kv_cache_spec import KVCacheSpec, LayerKVCache
from tests.support.paged import Chunk, paged_step

# query heads, KV heads, head_dim: grouped, multi-head, one KV head for many, channels that fill no vector.
HEADS = [
    (9, 3, 64),
    (8, 2, 128),
    (3, 3, 6),
    (14, 2, 24),
    (20, 1, 40),
    (5, 5, 256),
    (100, 1, 8),
    (4, 2, 96),
    (2, 1, 112),
]
# One key step, split and tile of query tokens each, and a little less and more.
LENGTHS = [1, 16, 63, 64, 65, 130, 255, 257, 600]
INSTRUCTION_SETS = ["portable", "auto"]
KV_DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def cpu_ops(instruction_set: str, num_threads: int) -> CpuOps:
    try:
        return CpuOps(num_threads, instruction_set)
    except LibraryMissing as exc:
        pytest.skip(str(exc))


class Requests:
    """Random keys, values and queries of some requests; the values are what a cache of `kv_dtype` can hold."""

    def __init__(
        self,
        heads: tuple[int, int, int],
        *,
        block_size: int = 16,
        kv_dtype: torch.dtype = torch.float16,
        lengths: Sequence[int] = LENGTHS,
        soft_cap: float | None = None,
        kv_scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        num_heads, num_kv_heads, self.head_dim = heads
        self.lengths, self.block_size, self.soft_cap = lengths, block_size, soft_cap
        self.kv_dtype, self.kv_scales = kv_dtype, kv_scales
        generator = torch.Generator().manual_seed(0)
        # Scores of a standard deviation of 3: some keys weigh much more than others, as in a model.
        self.queries = [3 * torch.randn(n, num_heads, self.head_dim, generator=generator) for n in lengths]
        self.keys, self.values = (
            [torch.randn(n, num_kv_heads, self.head_dim, generator=generator).to(kv_dtype).float() for n in lengths]
            for _ in range(2)
        )
        self.spec = KVCacheSpec(LayerKind.FULL, num_kv_heads, self.head_dim)
        blocks = list(range(sum(-(-n // block_size) for n in lengths) + 2))
        self.num_blocks = len(blocks)
        random.Random(0).shuffle(blocks)
        self.block_ids = [[blocks.pop() for _ in range(-(-n // block_size))] for n in lengths]

    def nan_filled_cache(self, ops: Ops) -> LayerKVCache:
        shape = ops.kv_cache_shape(self.spec, self.num_blocks, self.block_size)
        key, value = (torch.full(part, torch.nan).to(self.kv_dtype) for part in shape)
        return LayerKVCache(key, value, *self.kv_scales)

    def step(self, chunks: Sequence[tuple[int, int, int]]) -> ForwardMetadata:
        return paged_step([self._chunk(*chunk) for chunk in chunks], self.block_size)

    def attend(
        self,
        ops: Ops,
        cache: LayerKVCache,
        chunks: Sequence[tuple[int, int, int]],
        window: int | None = None,
        step: ForwardMetadata | None = None,
    ) -> list[torch.Tensor]:
        """Store and attend (request, start, number of tokens) chunks in one step; return each one's output."""
        step = step or self.step(chunks)
        cut = [(r, slice(s, s + n)) for r, s, n in chunks]
        key, value = (torch.cat([kv[r][part] for r, part in cut]) for kv in (self.keys, self.values))
        ops.store_kv(key, value, cache, step.slot_mapping)
        query = torch.cat([self.queries[r][part] for r, part in cut])
        scale = self.head_dim**-0.5
        out = ops.paged_attention(query, cache, step, scale=scale, sliding_window=window, soft_cap=self.soft_cap)
        return list(torch.split(out, [n for _, _, n in chunks]))

    def attend_whole(self, ops: Ops, window: int | None = None) -> list[torch.Tensor]:
        """Attend all requests in one step, each from its first token to its last."""
        return self.attend(ops, self.nan_filled_cache(ops), [(r, 0, n) for r, n in enumerate(self.lengths)], window)

    def attend_in_chunks(self, ops: Ops, window: int | None, largest: int, seed: int) -> list[torch.Tensor]:
        """Attend all requests in random chunks of up to `largest` tokens, several requests a step."""
        cache, rng = self.nan_filled_cache(ops), random.Random(seed)
        done = [0] * len(self.lengths)
        pieces: list[list[torch.Tensor]] = [[] for _ in self.lengths]
        while done != list(self.lengths):
            left = [r for r, n in enumerate(self.lengths) if done[r] < n]
            chosen = rng.sample(left, rng.randint(1, len(left)))
            chunks = [(r, done[r], min(self.lengths[r] - done[r], rng.randint(1, largest))) for r in chosen]
            for (request, start, num_tokens), output in zip(
                chunks, self.attend(ops, cache, chunks, window), strict=True
            ):
                pieces[request].append(output)
                done[request] = start + num_tokens
        return [torch.cat(p) for p in pieces]

    def _chunk(self, request: int, start: int, num_tokens: int) -> Chunk:
        # Only the blocks that this step may read: what lies beyond is not in the table.
        used = -(-(start + num_tokens) // self.block_size)
        return Chunk(self.block_ids[request][:used], start, num_tokens)


def assert_same_bits(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def is_close(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.allclose(left, right, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("window", [None, 1, 17, 300])
def test_attention_gives_the_reference(heads: tuple[int, int, int], window: int | None, instruction_set: str) -> None:
    requests = Requests(heads, lengths=[1, 16, 65, 257, 300])
    outputs = requests.attend_whole(cpu_ops(instruction_set, 2), window)
    expected = requests.attend_whole(ReferenceOps(), window)
    assert all(is_close(a, b) for a, b in zip(outputs, expected, strict=True))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("block_size", [1, 7, 8, 16, 32, 48, 256])
def test_attention_gives_the_reference_for_any_cache(
    block_size: int, kv_dtype: torch.dtype, instruction_set: str
) -> None:
    requests = Requests(HEADS[0], block_size=block_size, kv_dtype=kv_dtype, lengths=[3, 90, 280])
    outputs = requests.attend_whole(cpu_ops(instruction_set, 2))
    expected = requests.attend_whole(ReferenceOps())
    assert all(is_close(a, b) for a, b in zip(outputs, expected, strict=True))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("heads", [HEADS[0], HEADS[3], HEADS[5]])
@pytest.mark.parametrize("soft_cap", [0.5, 4.0, 50.0])
def test_capped_attention_gives_the_reference(
    soft_cap: float, heads: tuple[int, int, int], instruction_set: str
) -> None:
    """Scores reach about 12: some caps bind all of them, some hardly any."""
    requests = Requests(heads, lengths=[1, 16, 65, 257, 300], soft_cap=soft_cap)
    for window in (None, 17):
        outputs = requests.attend_whole(cpu_ops(instruction_set, 2), window)
        expected = requests.attend_whole(ReferenceOps(), window)
        assert all(is_close(a, b) for a, b in zip(outputs, expected, strict=True))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("heads", [HEADS[0], HEADS[3]])
@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("soft_cap", [None, 4.0])
def test_attention_gives_the_reference_for_scaled_8_bit_caches(
    soft_cap: float | None, kv_dtype: torch.dtype, heads: tuple[int, int, int], instruction_set: str
) -> None:
    # Scales by which some keys and values are the largest of e4m3, and some values of e5m2 subnormal.
    scales = (0.0061, 0.0073) if kv_dtype == torch.float8_e4m3fn else (0.75, 3000.0)
    requests = Requests(heads, kv_dtype=kv_dtype, lengths=[3, 90, 300], kv_scales=scales, soft_cap=soft_cap)
    outputs = requests.attend_whole(cpu_ops(instruction_set, 3))
    expected = requests.attend_whole(ReferenceOps())
    assert all(is_close(a, b) for a, b in zip(outputs, expected, strict=True))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("num_heads", [1, 3, 20])  # of one KV head: read in place, or converted for many rows
@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_number_of_8_bits_is_read_exactly(kv_dtype: torch.dtype, num_heads: int, instruction_set: str) -> None:
    ops = cpu_ops(instruction_set, 1)
    numbers = torch.arange(256, dtype=torch.uint8).view(kv_dtype)
    shape = ops.kv_cache_shape(KVCacheSpec(LayerKind.FULL, 1, 256), 1, 16)
    step = paged_step([Chunk([0], 0, 1)], 16)

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        cache = LayerKVCache(*(torch.zeros(part).to(kv_dtype) for part in shape), 1.0, 1.0)
        cache.key[0, 0, :, 0], cache.value[0, 0, 0] = key, value
        return ops.paged_attention(query, cache, step, scale=1.0, sliding_window=None)

    # The one key has all weight, whatever it is: the output is its value.
    zeros = torch.zeros(256).to(kv_dtype)
    output = attend(torch.zeros(1, num_heads, 256), zeros, numbers)
    assert all(torch.equal(head.nan_to_num(7, 8, 9), numbers.float().nan_to_num(7, 8, 9)) for head in output[0])
    for number in numbers[~numbers.float().isfinite()]:
        key = zeros.clone()
        key[5] = number
        assert attend(torch.ones(1, num_heads, 256), key, zeros).isnan().all()


def test_tolerance_notices_a_cap_that_hardly_binds() -> None:
    ops = cpu_ops("auto", 2)
    capped, plain = (Requests(HEADS[0], lengths=[65], soft_cap=cap).attend_whole(ops)[0] for cap in (50.0, None))
    assert not is_close(capped, plain)


def test_tolerance_notices_one_key_too_few_among_hundreds() -> None:
    requests, ops = Requests(HEADS[0], lengths=[600]), cpu_ops("auto", 2)
    (whole,), (short,) = requests.attend_whole(ops), requests.attend_whole(ops, window=599)
    assert is_close(whole[598], short[598])
    assert not is_close(whole[599], short[599])


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize(
    ("heads", "block_size", "window", "kv_dtype", "soft_cap"),
    [
        (HEADS[0], 16, None, torch.float16, None),
        (HEADS[0], 16, 100, torch.bfloat16, 4.0),
        (HEADS[1], 32, 300, torch.float32, None),
        (HEADS[2], 16, None, torch.float16, 4.0),
        (HEADS[3], 8, 40, torch.float16, None),
        (HEADS[4], 48, None, torch.float32, None),
        (HEADS[5], 16, None, torch.float16, 4.0),
        (HEADS[0], 16, None, torch.float8_e4m3fn, None),
        (HEADS[3], 16, 40, torch.float8_e5m2, None),
    ],
)
def test_token_has_the_same_bits_in_any_batch_any_chunks_and_on_any_threads(
    heads: tuple[int, int, int],
    block_size: int,
    window: int | None,
    kv_dtype: torch.dtype,
    soft_cap: float | None,
    instruction_set: str,
) -> None:
    requests = Requests(heads, block_size=block_size, kv_dtype=kv_dtype, soft_cap=soft_cap)
    ops = cpu_ops(instruction_set, 1)
    cache = requests.nan_filled_cache(ops)
    alone = [requests.attend(ops, cache, [(r, 0, n)], window)[0] for r, n in enumerate(LENGTHS)]
    for num_threads in (2, 7):
        assert_same_bits(requests.attend_whole(cpu_ops(instruction_set, num_threads), window), alone)
    for seed, (num_threads, largest) in enumerate([(1, 100), (3, 5), (2, 300)]):
        ops = cpu_ops(instruction_set, num_threads)
        assert_same_bits(requests.attend_in_chunks(ops, window, largest, seed), alone)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize(("length", "soft_cap"), [(257, None), (700, 4.0), (1500, None)])
def test_long_decode_split_over_threads_has_the_bits_of_one_thread(
    length: int, soft_cap: float | None, instruction_set: str
) -> None:
    requests = Requests(HEADS[0], lengths=[length], soft_cap=soft_cap)
    outputs = []
    for num_threads in (1, 2, 16):
        ops = cpu_ops(instruction_set, num_threads)
        cache = requests.nan_filled_cache(ops)
        requests.attend(ops, cache, [(0, 0, length - 1)])
        outputs.append(requests.attend(ops, cache, [(0, length - 1, 1)])[0])
    assert_same_bits(outputs[1:], outputs[:1] * 2)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("window", [1, 8, 16, 17, 64, 128])
def test_window_ends_exactly_before_the_last_of_its_keys(window: int, instruction_set: str) -> None:
    ops, outputs, last = cpu_ops(instruction_set, 1), [], 129
    for changed in (None, last - window, last - window + 1):
        requests = Requests(HEADS[0], lengths=[last + 1])
        if changed is not None:
            requests.values[0][changed] += 1
        outputs.append(requests.attend_whole(ops, window)[0][last])
    plain, beyond, within = outputs
    assert torch.equal(plain, beyond)
    assert not torch.equal(plain, within)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("block_size", [8, 16])
def test_blocks_that_left_the_window_are_not_read(block_size: int, instruction_set: str) -> None:
    window, length = 50, 400
    requests, ops = Requests(HEADS[0], block_size=block_size, lengths=[length]), cpu_ops(instruction_set, 2)
    expected = requests.attend_whole(ops, window)[0]
    cache = requests.nan_filled_cache(ops)
    requests.attend(ops, cache, [(0, 0, length - 3)], window)
    step = requests.step([(0, length - 3, 3)])
    step.block_tables[:, : (length - 3 + 1 - window) // block_size] = 2**30
    assert torch.equal(requests.attend(ops, cache, [(0, length - 3, 3)], window, step)[0], expected[-3:])


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("heads", [HEADS[0], HEADS[3]])
def test_token_is_not_touched_by_infinities_of_later_tokens(heads: tuple[int, int, int], instruction_set: str) -> None:
    ops, length, bad = cpu_ops(instruction_set, 2), 150, 101
    plain = Requests(heads, lengths=[length]).attend_whole(ops)[0]
    for kind in ("keys", "values", "queries"):
        requests = Requests(heads, lengths=[length])
        getattr(requests, kind)[0][bad] = torch.inf
        output = requests.attend_whole(ops)[0]
        assert torch.equal(output[:bad], plain[:bad])
        assert not output[bad].isfinite().all()
        if kind == "queries":
            assert torch.equal(output[bad + 1 :], plain[bad + 1 :])


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("soft_cap", [None, 1e5])
def test_scores_far_apart_and_far_from_zero_overflow_nothing(soft_cap: float | None, instruction_set: str) -> None:
    requests = Requests(HEADS[0], lengths=[300], kv_dtype=torch.float32, soft_cap=soft_cap)
    requests.queries[0] *= 1e4
    output = requests.attend_whole(cpu_ops(instruction_set, 2))[0]
    assert output.isfinite().all()
    # Almost all weight is on one key: the output is about its value.
    expected = requests.attend_whole(ReferenceOps())[0]
    assert (output - expected).abs().mean() < 1e-3


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_scores_far_beyond_their_cap_weigh_alike(instruction_set: str) -> None:
    requests = Requests(HEADS[2], lengths=[100], kv_dtype=torch.float32, soft_cap=2.0)
    requests.queries[0] *= 1e4
    output = requests.attend_whole(cpu_ops(instruction_set, 2))[0]
    assert is_close(output, requests.attend_whole(ReferenceOps())[0])
