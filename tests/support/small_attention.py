"""Launch choices of attention for the interpreter: tiles and splits so small that short requests have many of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pagewire.gpu_executor.kernels.triton import attention_passes as passes
from pagewire.gpu_executor.kernels.triton import paged_attention as launcher
from pagewire.gpu_executor.kernels.triton import split_sharing
from pagewire.gpu_executor.kernels.triton.launches.row import LaunchRow

SPLIT_LEN = 32
MAX_DECODE_TOKENS = 2
MAX_SHORT_CHUNK_TOKENS = 12


def _row(kernel: str, block_rows: int, split_len: int, parts_mask: int) -> tuple[LaunchRow]:
    constants = {"BLOCK_ROWS": block_rows, "BLOCK_KEYS": 16, "SPLIT_LEN": split_len, "PARTS_MASK": parts_mask}
    return (LaunchRow(kernel=kernel, at_most={}, constants=constants, num_warps=4, num_stages=1, reason="small"),)


def use_small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the launch table of attention: three ways to attend for up to 2, up to 12 and more tokens."""
    monkeypatch.setattr(passes, "DECODE_ATTENTION", _row("decode_attention", 16, SPLIT_LEN, 0))
    monkeypatch.setattr(passes, "SHORT_CHUNK_ATTENTION", _row("short_chunk_attention", 32, SPLIT_LEN, 0))
    monkeypatch.setattr(passes, "CHUNK_ATTENTION", _row("chunk_attention", 32, 0, 1))
    monkeypatch.setattr(passes, "MAX_DECODE_TOKENS", MAX_DECODE_TOKENS)
    monkeypatch.setattr(passes, "MAX_SHORT_CHUNK_TOKENS", MAX_SHORT_CHUNK_TOKENS)


def use_slots(monkeypatch: pytest.MonkeyPatch, num_slots: int) -> None:
    """Let that many programs share the splits of every tile, if it has as many."""
    monkeypatch.setattr(split_sharing, "_num_slots", lambda splits, *_: min(splits.max_splits, num_slots))


def use_workspace(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    """Let the results of shared splits take so much memory."""
    device = passes.attention_device(torch.device("cpu"))._replace(workspace_bytes=num_bytes)
    monkeypatch.setattr(launcher, "attention_device", lambda _: device)


@contextmanager
def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[list[str]]:
    """Note each call of one of the launcher's functions, which does what it does."""
    calls: list[str] = []
    function = getattr(launcher, name)

    def note(*args: Any) -> None:
        calls.append(name)
        function(*args)

    with monkeypatch.context() as patch:
        patch.setattr(launcher, name, note)
        yield calls
