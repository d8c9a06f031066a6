from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.triton.paged_attention import paged_attention
from tests.support.paged_requests import Attend, PagedRequests, Part, reference_attention
from tests.support.planted import PLANTED_ERRORS, PRECISION_ERRORS, Planted, assert_notices
from tests.support.small_attention import use_slots, use_small_tiles

pytestmark = pytest.mark.usefixtures("small_tiles", "poisoned_memory")

# A decode over three splits, a short chunk over a cached prefix, a chunk over another, and a token that is the first.
LENGTHS = [70, 37, 30, 1]
PARTS: list[Part] = [(0, 69, 1), (1, 30, 7), (2, 13, 17), (3, 0, 1)]

TOLERANCES = {torch.float32: (5e-6, 2e-5), torch.float16: (1e-3, 2e-3), torch.bfloat16: (1e-3, 8e-3)}


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_tiles(monkeypatch)


def triton_attention(
    requests: PagedRequests, *, window: int | None = None, cap: float | None = None, is_batch_invariant: bool = False
) -> Attend:
    return functools.partial(
        paged_attention,
        scale=requests.scale,
        sliding_window=window,
        soft_cap=cap,
        is_batch_invariant=is_batch_invariant,
    )


def assert_near(expected: Tensor, dtype: torch.dtype, actual: Tensor) -> None:
    atol, rtol = TOLERANCES[dtype]
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.float(), expected.float(), atol=atol, rtol=rtol)


def assert_equals_reference(
    requests: PagedRequests,
    *,
    window: int | None = None,
    cap: float | None = None,
    is_batch_invariant: bool = False,
) -> None:
    query, cache, step = requests.step(PARTS)
    expected = reference_attention(query, cache, step, scale=requests.scale, window=window, cap=cap)
    attend = triton_attention(requests, window=window, cap=cap, is_batch_invariant=is_batch_invariant)
    assert_near(expected, query.dtype, attend(query, cache, step))


@pytest.mark.parametrize(
    ("heads", "block_size", "window", "is_batch_invariant"),
    [
        ((1, 1, 6), 8, None, False),
        ((4, 2, 64), 32, None, False),
        ((3, 1, 80), 16, 17, False),
        ((5, 1, 96), 16, 1000, True),
        ((8, 1, 128), 1, None, True),
        ((2, 1, 256), 16, 33, False),
        ((6, 1, 16), 64, 1, False),
        ((7, 1, 16), 8, 2, True),
        ((9, 1, 16), 16, 16, True),
        ((20, 1, 16), 16, 31, False),
        ((20, 1, 16), 8, 64, True),
    ],
)
def test_each_shape_equals_the_reference(
    heads: tuple[int, int, int], block_size: int, window: int | None, is_batch_invariant: bool
) -> None:
    requests = PagedRequests(LENGTHS, heads, block_size=block_size)
    assert_equals_reference(requests, window=window, is_batch_invariant=is_batch_invariant)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("cap", [0.3, 50.0])
def test_each_soft_cap_equals_the_reference(cap: float, window: int | None) -> None:
    assert_equals_reference(PagedRequests(LENGTHS, (4, 1, 16)), window=window, cap=cap)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "window", "cap"), [((4, 1, 64), None, None), ((3, 1, 80), 21, 5.0), ((2, 1, 256), 33, 50.0)]
)
def test_each_dtype_equals_the_reference(
    dtype: torch.dtype, heads: tuple[int, int, int], window: int | None, cap: float | None
) -> None:
    assert_equals_reference(PagedRequests(LENGTHS, heads, dtype=dtype), window=window, cap=cap)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16])
def test_cache_of_another_dtype_is_read_as_it_is(kv_dtype: torch.dtype) -> None:
    assert_equals_reference(PagedRequests(LENGTHS, (2, 1, 32), dtype=torch.float16, kv_dtype=kv_dtype))


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        (torch.float32, torch.float8_e4m3fn),
        (torch.float16, torch.float8_e4m3fn),
        (torch.float16, torch.float8_e5m2),
        (torch.bfloat16, torch.float8_e5m2),
    ],
)
def test_8_bit_cache_is_widened_and_scaled(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    requests = PagedRequests(LENGTHS, (2, 1, 48), dtype=dtype, kv_dtype=kv_dtype, scales=(0.03, 1.7))
    assert_equals_reference(requests, window=40)


@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize(
    ("dtype", "planted"), [(torch.float32, PRECISION_ERRORS), (torch.float16, ()), (torch.bfloat16, ())]
)
def test_tolerances_notice_planted_errors(
    dtype: torch.dtype, planted: tuple[Planted, ...], num_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_slots(monkeypatch, num_slots)
    requests = PagedRequests(LENGTHS, (2, 1, 64), dtype=dtype)
    query, cache, step = requests.step(PARTS)
    expected = reference_attention(query, cache, step, scale=requests.scale, window=None, cap=None)
    actual = triton_attention(requests)(query, cache, step)
    assert_notices(functools.partial(assert_near, expected, dtype), actual, planted=PLANTED_ERRORS + planted)


@pytest.mark.parametrize("change", ["window", "cap", "scale", "key_scale"])
def test_tolerances_notice_an_argument_that_is_a_little_off(change: str) -> None:
    requests = PagedRequests(LENGTHS, (2, 1, 64), dtype=torch.float16)
    query, cache, step = requests.step(PARTS)
    exact: dict[str, Any] = {"scale": requests.scale, "window": 30, "cap": 3.0}
    off: dict[str, dict[str, Any]] = {
        "window": {"window": 31},
        "cap": {"cap": 2.8},
        "scale": {"scale": 0.95 * requests.scale},
        "key_scale": {},
    }
    expected = reference_attention(query, cache, step, **(exact | off[change]))
    if change == "key_scale":
        cache = cache._replace(key_scale=1.05)
    actual = triton_attention(requests, window=30, cap=3.0)(query, cache, step)
    with pytest.raises(AssertionError):
        assert_near(expected, torch.float16, actual)


def test_views_of_a_fused_projection_are_read_where_they_are() -> None:
    requests = PagedRequests(LENGTHS, (4, 2, 16))
    query, cache, step = requests.step(PARTS[1:])
    fused = torch.cat(
        [torch.full((len(query), 1, 16), torch.nan), query, torch.full((len(query), 2, 16), torch.nan)], 1
    )
    attend = triton_attention(requests)
    assert torch.equal(attend(fused[:, 1:5], cache, step), attend(query, cache, step))
    transposed = query.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(attend(transposed, cache, step), attend(query, cache, step))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scale": -1.0}, "negative"),
        ({"soft_cap": 0.0}, "positive"),
        ({"query": torch.zeros(26, 5, 16)}, "evenly"),
        ({"query": torch.zeros(26, 4, 8)}, "not contiguous"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], reason: str) -> None:
    requests = PagedRequests(LENGTHS, (4, 2, 16))
    query, cache, step = requests.step(PARTS)
    arguments = {"query": query, "kv_cache": cache, "metadata": step, "scale": 1.0, "sliding_window": None} | change
    with pytest.raises(ValueError, match=reason):
        paged_attention(**arguments)
