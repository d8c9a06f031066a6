"""Libraries that are not here are played by the reference, which reads what they are given as they would."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.attention_backends.flash_attn import FlashAttention
from pagewire.gpu_executor.kernels.attention_backends.flashinfer import FlashInfer
from pagewire.ipc.errors import ConfigError
from tests.support.paged_requests import PagedRequests, reference_attention

PARTS = [(0, 69, 1), (1, 30, 7), (2, 13, 17)]
LENGTHS = [70, 37, 30]


def dense_attention(
    query: Tensor, keys: Tensor, values: Tensor, *, scale: float, window: int | None, cap: float | None
) -> Tensor:
    """Attend the last tokens of a request over all of it: [num_tokens, heads, head_dim] each."""
    group = query.shape[1] // keys.shape[1]
    q, k, v = (rows.double().transpose(0, 1) for rows in (query, keys, values))
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    logits = q @ k.transpose(1, 2) * scale
    if cap:
        logits = cap * torch.tanh(logits / cap)
    distance = torch.arange(len(keys) - len(query), len(keys))[:, None] - torch.arange(len(keys))
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    return (logits.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(0, 1).to(query.dtype)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    softcap: float,
    block_table: Tensor,
    **options: Any,
) -> Tensor:
    assert options["causal"]
    left = options["window_size"][0]
    outputs = []
    for i in range(len(block_table)):
        length = int(cu_seqlens_k[i + 1] - cu_seqlens_k[i])
        blocks = block_table[i, : -(-length // k.shape[1])].long()
        rows = [part[blocks].flatten(0, 1)[:length] for part in (k, v)]
        outputs.append(
            dense_attention(
                q[cu_seqlens_q[i] : cu_seqlens_q[i + 1]],
                *rows,
                scale=options["softmax_scale"],
                window=None if left < 0 else left + 1,
                cap=softcap,
            )
        )
    return torch.cat(outputs)


class PrefillWrapper:
    def __init__(self, workspace: Tensor, kv_layout: str) -> None:
        assert kv_layout == "HND"
        self.num_plans = 0

    def plan(
        self,
        qo_indptr: Tensor,
        indptr: Tensor,
        indices: Tensor,
        last_len: Tensor,
        heads: int,
        kv_heads: int,
        head_dim: int,
        page: int,
        **options: Any,
    ) -> None:
        self.num_plans += 1
        self.planned = (qo_indptr, indptr, indices, last_len, page, options)

    def run(self, query: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        qo_indptr, indptr, indices, last_len, page, options = self.planned
        outputs = []
        for i in range(len(last_len)):
            blocks = indices[indptr[i] : indptr[i + 1]].long()
            length = (len(blocks) - 1) * page + int(last_len[i])
            rows = [part[blocks].transpose(1, 2).flatten(0, 1)[:length] for part in cache]
            left = options["window_left"]
            outputs.append(
                dense_attention(
                    query[qo_indptr[i] : qo_indptr[i + 1]],
                    *rows,
                    scale=options["sm_scale"],
                    window=None if left < 0 else left + 1,
                    cap=options["logits_soft_cap"],
                )
            )
        return torch.cat(outputs)


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    flash_attn, flashinfer = types.ModuleType("flash_attn"), types.ModuleType("flashinfer")
    vars(flash_attn)["flash_attn_varlen_func"] = flash_attn_varlen_func
    vars(flashinfer)["BatchPrefillWithPagedKVCacheWrapper"] = PrefillWrapper
    monkeypatch.setitem(sys.modules, "flash_attn", flash_attn)
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)


@pytest.mark.parametrize("backend", ["flash_attn", "flashinfer"])
@pytest.mark.parametrize(("window", "cap"), [(None, None), (20, None), (None, 3.0)])
def test_libraries_are_given_the_step_as_it_is(backend: str, window: int | None, cap: float | None) -> None:
    requests = PagedRequests(LENGTHS, (4, 2, 64), block_size=256, dtype=torch.float16)
    library = FlashAttention() if backend == "flash_attn" else FlashInfer(torch.device("cpu"))
    query, cache, step = requests.step(PARTS)
    output = library.attend(query, cache, step, scale=requests.scale, sliding_window=window, soft_cap=cap)
    for (request, start, n), rows in zip(PARTS, output.split([n for _, _, n in PARTS]), strict=True):
        keys, values = requests.keys[request][: start + n], requests.values[request][: start + n]
        part = requests.queries[request][start : start + n]
        expected = dense_attention(part, keys, values, scale=requests.scale, window=window, cap=cap)
        torch.testing.assert_close(rows, expected, atol=1e-3, rtol=1e-3)


def test_layers_of_a_kind_share_a_plan_and_steps_do_not() -> None:
    requests = PagedRequests(LENGTHS, (4, 2, 64), dtype=torch.float16)
    library = FlashInfer(torch.device("cpu"))
    for _ in range(2):
        query, cache, step = requests.step(PARTS)
        for _layer in range(3):
            library.attend(query, cache, step, scale=1.0, sliding_window=None, soft_cap=None)
    (wrapper,) = library._wrappers.values()
    assert wrapper.num_plans == 2


def test_layers_with_scales_of_their_own_share_a_plan_and_are_scaled_by_them() -> None:
    library = FlashInfer(torch.device("cpu"))
    layers = [
        PagedRequests(LENGTHS, (4, 2, 64), dtype=torch.float16, kv_dtype=torch.float8_e4m3fn, scales=scales)
        for scales in ((0.03, 1.7), (0.1, 0.5))
    ]
    step = layers[0].step(PARTS)[2]
    for layer in layers:
        query, cache, _ = layer.step(PARTS)
        output = library.attend(query, cache, step, scale=layer.scale, sliding_window=None, soft_cap=None)
        expected = reference_attention(query, cache, step, scale=layer.scale, window=None, cap=None)
        torch.testing.assert_close(output.float(), expected, atol=3e-3, rtol=3e-3)
    (wrapper,) = library._wrappers.values()
    assert wrapper.num_plans == 1


def test_layers_of_a_step_share_where_requests_begin_and_steps_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def attend(q: Tensor, *args: Any, cu_seqlens_k: Tensor, softcap: float, block_table: Tensor, **_: Any) -> Tensor:
        seen.append(cu_seqlens_k)
        return q

    monkeypatch.setattr(sys.modules["flash_attn"], "flash_attn_varlen_func", attend)
    requests = PagedRequests(LENGTHS, (4, 2, 64), block_size=256, dtype=torch.float16)
    library = FlashAttention()
    for parts in (PARTS, PARTS[:2]):
        query, cache, step = requests.step(parts)
        for _layer in range(3):
            library.attend(query, cache, step, scale=1.0, sliding_window=None, soft_cap=None)
    assert [starts.tolist() for starts in seen] == [[0, 70, 107, 137]] * 3 + [[0, 70, 107]] * 3
    assert seen[0] is seen[2]


def test_a_flash_attn_without_soft_caps_is_refused_with_the_version_that_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def older(q: Tensor, k: Tensor, v: Tensor, block_table: Tensor) -> Tensor:  # 2.5
        raise AssertionError

    monkeypatch.setattr(sys.modules["flash_attn"], "flash_attn_varlen_func", older)
    with pytest.raises(ConfigError, match=r"2\.6 or newer: .* does not take softcap"):
        FlashAttention()


@pytest.mark.parametrize(
    ("backend", "heads", "block_size", "dtype", "kv_dtype", "reason"),
    [
        ("flash_attn", (4, 2, 64), 16, torch.float16, None, "--block-size 256"),
        ("flash_attn", (4, 2, 64), 256, torch.float32, None, "--dtype"),
        ("flash_attn", (4, 2, 64), 256, torch.float16, torch.float8_e5m2, "--kv-cache-dtype"),
        ("flash_attn", (1, 1, 288), 256, torch.float16, None, "288"),
        ("flashinfer", (4, 2, 64), 16, torch.float32, None, "--dtype"),
        ("flashinfer", (4, 2, 80), 16, torch.float16, None, "80"),
    ],
)
def test_what_a_library_does_not_have_is_refused_with_the_remedy(
    backend: str,
    heads: tuple[int, int, int],
    block_size: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None,
    reason: str,
) -> None:
    requests = PagedRequests(LENGTHS, heads, block_size=block_size, dtype=dtype, kv_dtype=kv_dtype)
    library = FlashAttention() if backend == "flash_attn" else FlashInfer(torch.device("cpu"))
    with pytest.raises(ConfigError, match=reason):
        library.attend(*requests.step(PARTS), scale=1.0, sliding_window=None, soft_cap=None)


@pytest.mark.parametrize(("module", "package"), [("flash_attn", "flash-attn"), ("flashinfer", "flashinfer-python")])
def test_a_missing_library_is_named_with_its_package(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"pip install {package}"):
        FlashAttention() if module == "flash_attn" else FlashInfer(torch.device("cpu"))
