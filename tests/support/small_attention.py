"""Launch choices of attention for the interpreter: tiles and splits so small that short requests have many of them."""

from __future__ import annotations

import pytest

from pagewire.gpu_executor.kernels.triton import paged_attention as launcher
from pagewire.gpu_executor.kernels.triton.launches.row import LaunchRow

SPLIT_LEN = 32
MAX_DECODE_TOKENS = 2
MAX_SHORT_CHUNK_TOKENS = 12


def _row(kernel: str, block_rows: int, split_len: int, parts_mask: int) -> tuple[LaunchRow]:
    constants = {"BLOCK_ROWS": block_rows, "BLOCK_KEYS": 16, "SPLIT_LEN": split_len, "PARTS_MASK": parts_mask}
    return (LaunchRow(kernel=kernel, at_most={}, constants=constants, num_warps=4, num_stages=1, reason="small"),)


def use_small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the launch table of attention: three ways to attend for up to 2, up to 12 and more tokens."""
    monkeypatch.setattr(launcher, "DECODE_ATTENTION", _row("decode_attention", 16, SPLIT_LEN, 0))
    monkeypatch.setattr(launcher, "SHORT_CHUNK_ATTENTION", _row("short_chunk_attention", 32, SPLIT_LEN, 0))
    monkeypatch.setattr(launcher, "CHUNK_ATTENTION", _row("chunk_attention", 32, 0, 1))
    monkeypatch.setattr(launcher, "MAX_DECODE_TOKENS", MAX_DECODE_TOKENS)
    monkeypatch.setattr(launcher, "MAX_SHORT_CHUNK_TOKENS", MAX_SHORT_CHUNK_TOKENS)


def use_slots(monkeypatch: pytest.MonkeyPatch, num_slots: int) -> None:
    """Let that many programs share the splits of every tile, if it has as many."""
    monkeypatch.setattr(launcher, "_num_slots", lambda num_programs, device: num_slots)
