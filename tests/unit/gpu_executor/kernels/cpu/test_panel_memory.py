from __future__ import annotations

import pytest

from pagewire.gpu_executor.kernels.cpu import panel_memory
from pagewire.gpu_executor.kernels.cpu.panel_memory import PanelMemory


def test_pieces_begin_on_cache_lines_and_never_overlap() -> None:
    memory = PanelMemory()
    pieces = [memory.allocate(size) for size in (1, 64, 100, 4096, 0, 7)]
    for number, piece in enumerate(pieces):
        assert piece.data_ptr() % 64 == 0
        assert not piece.any()
        piece.fill_(number + 1)
    assert [piece.unique().tolist() for piece in pieces] == [[1], [2], [3], [4], [], [6]]


def test_what_does_not_fit_the_rest_of_a_chunk_begins_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel_memory, "_CHUNK_BYTES", 1024)
    memory = PanelMemory()
    first, second, large = memory.allocate(1000), memory.allocate(1000), memory.allocate(5000)
    starts = {piece.untyped_storage().data_ptr() for piece in (first, second, large)}
    assert len(starts) == 3
    assert large.numel() == 5000


def test_more_than_the_system_has_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="bytes for weights"):
        PanelMemory().allocate(1 << 60)
