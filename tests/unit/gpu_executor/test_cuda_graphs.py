"""Steps of decodes in captured graphs: padded, captured when it hurts nobody, and given up without harm.

The recorder is a fake that runs the work again at each replay; model, KV cache and ops are real.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.batch.forward_metadata import ForwardMetadata
from pagewire.gpu_executor.batch.step_inputs import StepInputs
from pagewire.gpu_executor.cuda_graphs import DecodeGraphs, GraphBuffers, graph_sizes
from tests.support.rank_threads import ThreadedRanks
from tests.support.runner import BLOCK_SIZE, make_runner
from tests.support.tiny_model import tiny_checkpoint

MAX_BLOCKS = 8
GIB = 2**30


class FakeRecorder:
    """Replays by running the work again.

    Attributes:
        errors: raised by the next captures, one each; None: it works.
        taken: bytes that a capture takes.
    """

    def __init__(self) -> None:
        self.errors: list[Exception | None] = []
        self.taken = 0
        self.free = GIB
        self.num_replays = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        error = self.errors.pop(0) if self.errors else None
        work()  # the warm-up
        if error is not None:
            raise error
        work()
        self.free -= self.taken

        def replay() -> None:
            self.num_replays += 1
            work()

        return replay

    def free_bytes(self) -> int:
        return self.free


class Captured:
    """Graphs over a tiny model, beside the same step without them."""

    def __init__(self, sizes: tuple[int, ...] = (1, 2, 4, 8), reserve_bytes: int = GIB) -> None:
        runner = make_runner(tiny_checkpoint(num_kv_heads=2), num_blocks=64)
        self.model, self.kv_cache = runner.model, runner.kv_cache
        for layer in self.kv_cache.layers:
            layer.key.normal_(generator=torch.Generator().manual_seed(1))
            layer.value.normal_(generator=torch.Generator().manual_seed(2))
        self.recorder = FakeRecorder()
        self.buffers = GraphBuffers.allocate(
            sizes[-1], MAX_BLOCKS, hidden_size=64, vocab_size=512, dtype=torch.float32, device=torch.device("cpu")
        )
        self.graphs = DecodeGraphs(
            self.model, self.kv_cache, self.buffers, self.recorder, sizes=sizes, reserve_bytes=reserve_bytes
        )

    def capture_all(self) -> list[str]:
        told = []
        while (text := self.graphs.next_capture()) is not None:
            told.append(text)
            self.graphs.capture()
        return told

    def step(self, num_rows: int, seed: int = 0, *, width: int = MAX_BLOCKS) -> StepInputs:
        """Decodes of rows that have blocks of their own and any lengths."""
        generator = torch.Generator().manual_seed(seed)
        blocks = torch.arange(num_rows * MAX_BLOCKS, dtype=torch.int32).view(num_rows, MAX_BLOCKS) % 64
        seq_lens = torch.randint(1, MAX_BLOCKS * BLOCK_SIZE, (num_rows,), generator=generator, dtype=torch.int32)
        positions = seq_lens.long() - 1
        slots = blocks[torch.arange(num_rows), positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
        tables = torch.full((num_rows, max(width, MAX_BLOCKS)), -7, dtype=torch.int32)
        tables[:, :MAX_BLOCKS] = blocks
        metadata = ForwardMetadata(
            positions=positions,
            slot_mapping=slots,
            block_tables=tables[:, :width],
            query_start_loc=torch.arange(num_rows + 1, dtype=torch.int32),
            seq_lens=seq_lens,
            logits_indices=torch.arange(num_rows),
            block_size=BLOCK_SIZE,
            max_query_len=1,
            max_seq_len=int(seq_lens.max()),
        )
        ids = torch.randint(0, 512, (num_rows,), generator=generator)
        return StepInputs(input_ids=ids, metadata=metadata, draw_rows=range(num_rows), prompt_spans=(), is_decode=True)

    @torch.inference_mode()
    def eagerly(self, inputs: StepInputs) -> tuple[Tensor, Tensor]:
        hidden = self.model.forward(inputs.input_ids, inputs.metadata, self.kv_cache.layers)
        return hidden, self.model.compute_logits(hidden)


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (100, (1, 2, 4, *range(8, 100, 8), 100)),
        (300, (1, 2, 4, *range(8, 257, 8), 272, 288, 300)),
        (4096, (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))),
    ],
)
def test_sizes_end_at_the_most_rows_that_run(max_num_seqs: int, sizes: tuple[int, ...]) -> None:
    assert graph_sizes(max_num_seqs) == sizes


def test_idle_captures_go_from_the_largest_down() -> None:
    told = Captured().capture_all()
    assert [int(text.split()[-2]) for text in told] == [8, 4, 2, 1]


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 8])
def test_a_replay_gives_what_the_step_gives(num_rows: int) -> None:
    captured = Captured()
    captured.capture_all()
    for seed in range(3):  # what an earlier step left in the buffers does not show
        other = captured.step(8, seed + 10)
        captured.graphs.run(other)
        inputs = captured.step(num_rows, seed)
        expected_hidden, expected_logits = captured.eagerly(inputs)
        results = captured.graphs.run(inputs)
        assert results is not None
        torch.testing.assert_close(results[0], expected_hidden, rtol=0, atol=0)
        torch.testing.assert_close(results[1], expected_logits, rtol=0, atol=0)
    assert captured.recorder.num_replays == 6


def test_a_capture_writes_no_keys() -> None:
    captured = Captured()
    captured.capture_all()
    captured.graphs.run(captured.step(8))
    before = [layer.key.clone() for layer in captured.kv_cache.layers]
    # The buffers still hold the last step's slots, which may be others' by now.
    captured.recorder.taken = 0
    fresh = DecodeGraphs(
        captured.model, captured.kv_cache, captured.buffers, captured.recorder, sizes=(8,), reserve_bytes=GIB
    )
    captured.buffers.input_ids.fill_(3)
    fresh.capture()
    for key, layer in zip(before, captured.kv_cache.layers, strict=True):
        assert torch.equal(key, layer.key)


def test_padding_reads_no_keys_and_leaves_all_finite() -> None:
    captured = Captured()
    captured.capture_all()
    for layer in captured.kv_cache.layers:
        layer.key[63].fill_(math.nan)
        layer.value[63].fill_(math.nan)
    captured.buffers.block_tables.fill_(63)  # what padding rows point to
    hidden, logits = captured.graphs.run(captured.step(1)) or pytest.fail("a graph is there")
    assert hidden.isfinite().all()
    assert logits.isfinite().all()
    assert captured.buffers.logits[:1].data_ptr() == logits.data_ptr()


def test_tables_with_more_room_than_a_request_needs_are_cut() -> None:
    captured = Captured()
    captured.capture_all()
    narrow, wide = captured.step(2, width=MAX_BLOCKS), captured.step(2, width=MAX_BLOCKS + 5)
    expected = captured.graphs.run(narrow)
    assert expected is not None
    expected_logits = expected[1].clone()
    results = captured.graphs.run(wide)
    assert results is not None
    assert torch.equal(results[1], expected_logits)


def test_without_a_graph_steps_run_one_by_one_and_the_fourth_makes_a_capture_due() -> None:
    captured = Captured()
    graphs = captured.graphs
    for _ in range(3):
        assert graphs.run(captured.step(3)) is None
        assert not graphs.is_due()
    assert graphs.run(captured.step(4)) is None
    assert graphs.is_due()
    assert graphs.next_capture() == "capturing the CUDA graph of 4 decodes"
    graphs.capture()
    assert not graphs.is_due()
    assert graphs.run(captured.step(3)) is not None


def test_a_graph_of_up_to_twice_the_rows_serves_and_makes_none_due() -> None:
    captured = Captured(sizes=(1, 2, 4, 8))
    captured.graphs.capture()  # of 8
    for _ in range(10):
        assert captured.graphs.run(captured.step(4)) is not None
    assert not captured.graphs.is_due()
    for _ in range(4):
        assert captured.graphs.run(captured.step(2)) is not None
    assert captured.graphs.is_due()
    assert captured.graphs.next_capture() == "capturing the CUDA graph of 2 decodes"


def test_more_rows_than_any_graph_has_run_one_by_one() -> None:
    captured = Captured(sizes=(1, 2))
    captured.capture_all()
    assert captured.graphs.run(captured.step(3)) is None
    assert not captured.graphs.is_due()


def hidden_out_of_memory() -> RuntimeError:
    """What the end of a capture makes of it."""
    error = RuntimeError("operation failed due to a previous error during capture")
    error.__context__ = torch.OutOfMemoryError("CUDA out of memory")
    return error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        torch.AcceleratorError("CUDA error: out of memory"),
        hidden_out_of_memory(),
    ],
)
def test_want_of_memory_leaves_that_size_out_and_goes_on_with_smaller_ones(
    error: RuntimeError, caplog: pytest.LogCaptureFixture
) -> None:
    captured = Captured()
    captured.recorder.errors = [error]
    told = captured.capture_all()
    assert [int(text.split()[-2]) for text in told] == [8, 4, 2, 1]
    (record,) = caplog.records
    assert "8 decodes" in record.getMessage()
    assert "--gpu-memory-utilization" in record.getMessage()
    assert captured.graphs.run(captured.step(8)) is None
    assert captured.graphs.run(captured.step(4)) is not None
    assert not captured.graphs.is_due()


def test_want_of_memory_for_a_small_graph_leaves_the_larger_ones_out_as_well() -> None:
    captured = Captured()
    for _ in range(4):
        captured.graphs.run(captured.step(2))
    captured.recorder.errors = [torch.OutOfMemoryError("CUDA out of memory")]
    captured.graphs.capture()
    assert captured.graphs.next_capture() == "capturing the CUDA graph of 1 decodes"


class TritonError(Exception):
    """Triton's own errors derive from nothing narrower."""


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("operation not permitted when stream is capturing"),
        TritonError("PTXAS error"),
        OSError(28, "No space left on device", "/root/.triton/cache"),
    ],
)
def test_a_capture_that_fails_otherwise_ends_graphs_and_not_the_executor(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    captured = Captured()
    captured.graphs.capture()
    captured.recorder.errors = [error]
    captured.graphs.capture()
    assert captured.graphs.next_capture() is None
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "--enforce-eager" in caplog.text
    for _ in range(5):
        assert captured.graphs.run(captured.step(8)) is not None  # what was captured goes on
        captured.graphs.run(captured.step(1))
    assert not captured.graphs.is_due()


def test_graphs_take_no_more_than_was_set_aside(caplog: pytest.LogCaptureFixture) -> None:
    captured = Captured(reserve_bytes=100)
    captured.recorder.taken = 60
    told = captured.capture_all()
    assert len(told) == 2
    assert "set aside" in caplog.text


def test_ranks_keep_the_graphs_that_all_of_them_have():
    ranks, captured = ThreadedRanks(2), [Captured(), Captured()]
    captured[1].recorder.errors = [None, RuntimeError("CUDA error: out of memory")]  # one rank has no room for size 4

    def capture(rank: int) -> None:
        captured[rank].graphs.capture_all(ranks.groups[rank])

    ranks.run(capture)
    for of_rank in captured:
        assert of_rank.graphs.next_capture() is None
        assert of_rank.graphs._captured == [1, 2, 8]
        assert sorted(of_rank.graphs._replays) == [1, 2, 8]


def test_ranks_give_up_graphs_together():
    ranks, captured = ThreadedRanks(2), [Captured(), Captured()]
    captured[0].recorder.errors = [None, RuntimeError("operation not permitted when stream is capturing")]
    ranks.run(lambda rank: captured[rank].graphs.capture_all(ranks.groups[rank]))
    assert [of_rank.graphs._captured for of_rank in captured] == [[8], [8]]
