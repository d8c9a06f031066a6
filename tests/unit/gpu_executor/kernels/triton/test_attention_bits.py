"""What must not change a bit of a token's attention."""

from __future__ import annotations

import dataclasses
import functools
import random

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.triton.paged_attention import paged_attention
from pagewire.gpu_executor.kv_cache_spec import LayerKVCache
from tests.support.paged_requests import Attend, PagedRequests, Part
from tests.support.quick_interpreter import multiply_rows_alike
from tests.support.small_attention import (
    MAX_DECODE_TOKENS,
    MAX_SHORT_CHUNK_TOKENS,
    SPLIT_LEN,
    count_calls,
    use_slots,
    use_small_tiles,
    use_workspace,
)

pytestmark = pytest.mark.usefixtures("poisoned_memory")

LENGTHS = [70, 37, 30, 1, 41]
PARTS: list[Part] = [(0, 69, 1), (1, 30, 7), (2, 13, 17), (3, 0, 1), (4, 39, 2)]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_tiles(monkeypatch)
    multiply_rows_alike(monkeypatch)


def attention(
    requests: PagedRequests, *, window: int | None, cap: float | None = None, is_batch_invariant: bool = False
) -> Attend:
    return functools.partial(
        paged_attention,
        scale=requests.scale,
        sliding_window=window,
        soft_cap=cap,
        is_batch_invariant=is_batch_invariant,
    )


def bits(tensor: Tensor) -> Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


@pytest.mark.parametrize("is_batch_invariant", [False, True])
@pytest.mark.parametrize(
    ("dtype", "window", "cap"), [(torch.float16, None, None), (torch.float32, 35, None), (torch.float32, None, 3.0)]
)
def test_a_request_alone_has_the_bits_that_it_has_among_others(
    dtype: torch.dtype, window: int | None, cap: float | None, is_batch_invariant: bool
) -> None:
    requests = PagedRequests(LENGTHS, (3, 1, 32), dtype=dtype)
    attend = attention(requests, window=window, cap=cap, is_batch_invariant=is_batch_invariant)
    together = requests.attend(attend, PARTS)
    for part, output in zip(PARTS, together, strict=True):
        assert torch.equal(bits(requests.attend(attend, [part])[0]), bits(output))


@pytest.mark.parametrize("is_batch_invariant", [False, True])
@pytest.mark.parametrize(("window", "cap"), [(None, None), (35, None), (None, 3.0)])
def test_bits_are_the_same_however_many_programs_share_the_splits(
    window: int | None, cap: float | None, is_batch_invariant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = PagedRequests([130, 37, 30], (3, 1, 16))
    inputs = requests.step([(0, 129, 1), (1, 30, 7)])
    attend = attention(requests, window=window, cap=cap, is_batch_invariant=is_batch_invariant)
    outputs = []
    for num_slots in (1, 2, 99):
        use_slots(monkeypatch, num_slots)
        outputs.append(attend(*inputs))
    assert all(torch.equal(bits(output), bits(outputs[0])) for output in outputs[1:])


@pytest.mark.parametrize("window", [None, 35])
def test_bits_are_the_same_in_however_many_parts_requests_are_launched(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_slots(monkeypatch, 2)
    requests = PagedRequests(LENGTHS, (3, 1, 16))
    inputs = requests.step([(0, 69, 1), (1, 35, 2), (2, 29, 1), (3, 0, 1), (4, 39, 2)])
    partial_bytes = 4 * 2 * 3 * -(-70 // SPLIT_LEN) * (16 + 2)  # of a request of two tokens
    outputs = []
    for num_requests, num_launches in ((5, 1), (3, 2), (2, 3), (1, 5)):
        use_workspace(monkeypatch, num_requests * partial_bytes)
        with count_calls(monkeypatch, "_combine") as calls:
            outputs.append(attention(requests, window=window)(*inputs))
        assert len(calls) == num_launches
    assert all(torch.equal(bits(output), bits(outputs[0])) for output in outputs[1:])


@pytest.mark.parametrize("is_batch_invariant", [False, True])
def test_sizes_that_launches_are_made_for_change_no_bit(is_batch_invariant: bool) -> None:
    requests = PagedRequests(LENGTHS, (3, 1, 32))
    query, cache, step = requests.step(PARTS)
    attend = attention(requests, window=None, is_batch_invariant=is_batch_invariant)
    larger = dataclasses.replace(step, max_query_len=1000, max_seq_len=400)
    assert torch.equal(bits(attend(query, cache, step)), bits(attend(query, cache, larger)))


@pytest.mark.parametrize(
    ("dtype", "window", "cap", "num_slots"),
    [(torch.float16, None, None, 1), (torch.float32, 35, None, 2), (torch.float32, None, 3.0, 2)],
)
def test_under_batch_invariance_any_chunks_give_the_same_bits(
    dtype: torch.dtype, window: int | None, cap: float | None, num_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_slots(monkeypatch, num_slots)
    length = 39
    requests = PagedRequests([length], (3, 1, 16), dtype=dtype)
    attend = attention(requests, window=window, cap=cap, is_batch_invariant=True)
    (whole,) = requests.attend(attend, [(0, 0, length)])
    rng = random.Random(0)
    start = 0
    while start < length:
        num_tokens = min(length - start, rng.choice([1, MAX_DECODE_TOKENS, 7, MAX_SHORT_CHUNK_TOKENS + 1]))
        (part,) = requests.attend(attend, [(0, start, num_tokens)])
        assert torch.equal(bits(part), bits(whole[start : start + num_tokens]))
        start += num_tokens


@pytest.mark.parametrize("is_batch_invariant", [False, True])
def test_rows_that_pad_a_batch_give_zeros_and_change_nothing(is_batch_invariant: bool) -> None:
    requests = PagedRequests(LENGTHS, (3, 1, 32))
    parts: list[Part] = [(0, 69, 1), (3, 0, 1), (4, 40, 1)]
    query, cache, step = requests.step(parts)
    padded = dataclasses.replace(
        step,
        block_tables=torch.cat([step.block_tables, torch.full((2, step.block_tables.shape[1]), -1, dtype=torch.int32)]),
        query_start_loc=torch.arange(6, dtype=torch.int32),
        seq_lens=torch.cat([step.seq_lens, torch.zeros(2, dtype=torch.int32)]),
    )
    attend = attention(requests, window=None, is_batch_invariant=is_batch_invariant)
    output = attend(torch.cat([query, torch.full((2, 3, 32), torch.nan)]), cache, padded)
    assert torch.equal(bits(output[:3]), bits(attend(query, cache, step)))
    assert torch.equal(bits(output[3:]), torch.zeros(2, 3, 32, dtype=torch.int32))


def test_a_request_of_nan_spoils_no_other() -> None:
    requests = PagedRequests(LENGTHS, (3, 1, 32))
    attend = attention(requests, window=None)
    before = requests.attend(attend, PARTS)
    requests.keys[1][3] = torch.nan
    requests.values[1][5] = torch.inf
    after = requests.attend(attend, PARTS)
    assert bool(after[1].isnan().any())
    assert all(torch.equal(bits(after[i]), bits(before[i])) for i in (0, 2, 3, 4))


@pytest.mark.parametrize("is_batch_invariant", [False, True])
@pytest.mark.parametrize("window", [1, 16, 17, 40])
def test_window_ends_exactly_before_the_last_of_its_keys(window: int, is_batch_invariant: bool) -> None:
    last, outputs = 69, []
    for changed in (None, last - window, last - window + 1):
        requests = PagedRequests(LENGTHS, (1, 1, 16))
        if changed is not None:
            requests.values[0][changed] += 1
        attend = attention(requests, window=window, is_batch_invariant=is_batch_invariant)
        outputs.append(requests.attend(attend, [(0, last, 1)])[0])
    plain, beyond, within = outputs
    assert torch.equal(plain, beyond)
    assert not torch.equal(plain, within)


def test_an_empty_step_gives_an_empty_output() -> None:
    requests = PagedRequests(LENGTHS, (3, 1, 32))
    _, cache, step = requests.step(PARTS)
    empty = dataclasses.replace(
        step,
        query_start_loc=torch.zeros(1, dtype=torch.int32),
        seq_lens=step.seq_lens[:0],
        block_tables=step.block_tables[:0],
    )
    assert isinstance(cache, LayerKVCache)
    assert attention(requests, window=None)(torch.empty(0, 3, 32), cache, empty).shape == (0, 3, 32)
