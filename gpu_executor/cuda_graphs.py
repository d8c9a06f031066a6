"""CUDA graphs of decode steps: one launch in place of hundreds, for padded batch sizes, captured while serving.

A step of decodes computes so little for each token that launching its kernels one by one takes longer than they run. A
graph holds them all, with every shape and address fixed: a step's inputs are copied into buffers of the graph's size,
and rows that only pad them have no keys (seq_len 0) and store none (slot -1).

A rank that has its layers for itself captures nothing before the server is ready. A size is captured when nobody needs
the device, the largest first, since it can run all smaller steps as well, or between two steps if they asked for it
again and again in vain. Ranks that share layers must replay the same graph or none, and speak to each other while they
capture: they capture all sizes together, at the start.
"""

from __future__ import annotations

import bisect
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .batch.forward_metadata import ForwardMetadata
from .batch.kv_cache import KVCache
from .batch.step_inputs import StepInputs
from .devices.graph_recorder import GraphRecorder, is_out_of_memory
from .models.base import Model
from .parallel.rank_group import RankGroup

logger = logging.getLogger(__name__)

# A step of more rows computes for longer than its launches take, one step ahead of it.
_MAX_ROWS = 512
# Steps that asked for a size in vain, before steps are held up for its capture.
_MISSES_BEFORE_DUE = 4


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Return the numbers of rows to capture graphs for, ascending: 1, 2, 4, then by 8 to 256, by 16 beyond.

    The largest is `max_num_seqs`, so that every step of decodes fits one, but for very large batches.
    """
    largest = min(max_num_seqs, _MAX_ROWS)
    steps = (1, 2, 4, *range(8, 257, 8), *range(272, _MAX_ROWS + 1, 16))
    return (*(size for size in steps if size < largest), largest)


@dataclass(frozen=True, slots=True)
class GraphBuffers:
    """Where graphs read their inputs and leave their results; a graph of n rows has the first n of each.

    Attributes:
        input_ids: [max_rows] int64.
        positions: [max_rows] int64.
        slot_mapping: [max_rows] int64.
        block_tables: [max_rows, max_blocks] int32.
        seq_lens: [max_rows] int32.
        row_starts: [max_rows + 1] int32, 0, 1, 2, ...: every row has one token.
        row_indices: [max_rows] int64, 0, 1, 2, ...
        hidden: [max_rows, hidden_size], compute dtype.
        logits: [max_rows, vocab_size] float32.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    row_starts: Tensor
    row_indices: Tensor
    hidden: Tensor
    logits: Tensor

    @classmethod
    def allocate(
        cls,
        max_rows: int,
        max_blocks: int,
        *,
        hidden_size: int,
        vocab_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> GraphBuffers:
        """Make buffers that hold padding alone.

        Args:
            max_rows: of the largest graph.
            max_blocks: KV blocks that a request can have.
            hidden_size: of the model.
            vocab_size: of the model.
            dtype: that it computes in.
            device: where it runs.
        """
        return cls(
            input_ids=torch.zeros(max_rows, dtype=torch.int64, device=device),
            positions=torch.zeros(max_rows, dtype=torch.int64, device=device),
            slot_mapping=torch.full((max_rows,), -1, dtype=torch.int64, device=device),
            block_tables=torch.zeros((max_rows, max_blocks), dtype=torch.int32, device=device),
            seq_lens=torch.zeros(max_rows, dtype=torch.int32, device=device),
            row_starts=torch.arange(max_rows + 1, dtype=torch.int32, device=device),
            row_indices=torch.arange(max_rows, dtype=torch.int64, device=device),
            hidden=torch.zeros((max_rows, hidden_size), dtype=dtype, device=device),
            logits=torch.zeros((max_rows, vocab_size), dtype=torch.float32, device=device),
        )

    def metadata(self, num_rows: int, block_size: int) -> ForwardMetadata:
        """Return the metadata of a graph, sized for requests as long as any can be."""
        max_blocks = self.block_tables.shape[1]
        return ForwardMetadata(
            positions=self.positions[:num_rows],
            slot_mapping=self.slot_mapping[:num_rows],
            block_tables=self.block_tables[:num_rows],
            query_start_loc=self.row_starts[: num_rows + 1],
            seq_lens=self.seq_lens[:num_rows],
            logits_indices=self.row_indices[:num_rows],
            block_size=block_size,
            max_query_len=1,
            max_seq_len=max_blocks * block_size,
        )

    def clear(self) -> None:
        """Make all rows padding: what is launched on them changes nothing, whoever has a slot by now."""
        self.slot_mapping.fill_(-1)
        self.seq_lens.zero_()

    def fill(self, inputs: StepInputs, num_rows: int) -> None:
        """Copy a step's inputs; pad them to `num_rows`."""
        metadata = inputs.metadata
        count = inputs.input_ids.shape[0]
        self.input_ids[:count].copy_(inputs.input_ids)
        self.positions[:count].copy_(metadata.positions)
        self.slot_mapping[:count].copy_(metadata.slot_mapping)
        self.seq_lens[:count].copy_(metadata.seq_lens)
        # Tables may have room for more blocks than a request can have.
        columns = min(metadata.block_tables.shape[1], self.block_tables.shape[1])
        self.block_tables[:count, :columns].copy_(metadata.block_tables[:, :columns])
        if count < num_rows:
            # What an earlier step left in the other buffers is as good as anything: it is in range.
            self.slot_mapping[count:num_rows].fill_(-1)
            self.seq_lens[count:num_rows].zero_()


class DecodeGraphs:
    """The graphs of a model; implements `GraphedForward`.

    Args:
        model: whose forward and output layer are captured.
        kv_cache: the pool, at its final addresses.
        buffers: of the largest size.
        recorder: captures.
        sizes: numbers of rows, ascending.
        reserve_bytes: what all graphs together may take of the device's memory. Beyond that it is others': a large
            prefill would find too little.
    """

    def __init__(
        self,
        model: Model,
        kv_cache: KVCache,
        buffers: GraphBuffers,
        recorder: GraphRecorder,
        *,
        sizes: Sequence[int],
        reserve_bytes: int,
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._buffers = buffers
        self._recorder = recorder
        self._sizes = list(sizes)
        self._reserve_bytes = reserve_bytes
        self._taken_bytes = 0
        self._replays: dict[int, Callable[[], None]] = {}
        self._captured: list[int] = []  # ascending
        self._open = list(sizes)  # ascending: what may still be captured
        self._misses: Counter[int] = Counter()
        self._due: int | None = None

    @torch.inference_mode()
    def run(self, inputs: StepInputs) -> tuple[Tensor, Tensor] | None:
        """See `GraphedForward.run`."""
        num_rows = inputs.input_ids.shape[0]
        wanted = _least(self._sizes, num_rows)
        if wanted is None:
            return None
        size = _least(self._captured, num_rows)
        if size != wanted:
            self._count_miss(wanted, size)
        if size is None:
            return None
        self._buffers.fill(inputs, size)
        self._replays[size]()
        return self._buffers.hidden[:num_rows], self._buffers.logits[:num_rows]

    def next_capture(self) -> str | None:
        """See `GraphedForward.next_capture`."""
        size = self._next_size()
        return None if size is None else f"capturing the CUDA graph of {size} decodes"

    def is_due(self) -> bool:
        """See `GraphedForward.is_due`."""
        return self._due is not None

    @torch.inference_mode()
    def capture(self) -> None:
        """See `GraphedForward.capture`."""
        size = self._next_size()
        assert size is not None, "asked for only while there is something to capture"
        self._due = None
        self._open.remove(size)
        self._buffers.clear()
        free_bytes = self._recorder.free_bytes()
        try:
            replay = self._recorder.record(lambda: self._forward(size))
        # A graph is a convenience, and whatever hinders its capture leaves the executor as it was: what the driver
        # refuses (RuntimeError), what Triton can't compile (TritonError) or keep in its cache (OSError). A device that
        # is broken says so again at the next step.
        except Exception as exc:
            self._give_up(size, exc)
            return
        self._replays[size] = replay
        bisect.insort(self._captured, size)
        self._taken_bytes += max(0, free_bytes - self._recorder.free_bytes())
        logger.debug("CUDA graph of %d rows captured; all take %.1f MiB", size, self._taken_bytes / 2**20)
        if self._open and self._taken_bytes > self._reserve_bytes:
            logger.warning(
                "%d CUDA graphs take %.2f GiB, more than the %.2f GiB that were set aside; steps of other sizes use "
                "the next larger one, or none",
                len(self._captured), self._taken_bytes / 2**30, self._reserve_bytes / 2**30,
            )  # fmt: skip
            self._open.clear()

    def capture_all(self, ranks: RankGroup) -> None:
        """Capture whatever can be had on all of some ranks, each of which calls this before its first step.

        One that fails in the midst of a capture may leave the others waiting for it, as in any step.
        """
        while self._open:
            size = self._open[-1]
            self.capture()
            if not ranks.least(int(size in self._replays)) and self._replays.pop(size, None) is not None:
                self._captured.remove(size)
            del self._open[ranks.least(len(self._open)) :]  # each has the first of the same sizes

    def _next_size(self) -> int | None:
        if self._due is not None:
            return self._due
        return self._open[-1] if self._open else None

    def _count_miss(self, wanted: int, size: int | None) -> None:
        """Note that a step ran without the graph of its size, in that of another one or in none."""
        if wanted not in self._open:
            return
        self._misses[wanted] += 1
        # A graph of up to twice the rows costs a step next to nothing, less than a capture costs all others.
        is_served = size is not None and size <= 2 * wanted
        if self._misses[wanted] >= _MISSES_BEFORE_DUE and not is_served:
            self._due = wanted

    def _forward(self, size: int) -> None:
        """Launch what a graph holds. Results go to buffers outside of the graphs' memory, which all of them share."""
        buffers = self._buffers
        metadata = buffers.metadata(size, self._kv_cache.block_size)
        hidden = self._model.forward(buffers.input_ids[:size], metadata, self._kv_cache.layers)
        buffers.hidden[:size].copy_(hidden)
        self._model.compute_logits(hidden, out=buffers.logits[:size])

    def _give_up(self, size: int, exc: Exception) -> None:
        """Go on without the graphs that can't be had: larger ones for want of memory, else all."""
        self._misses.clear()
        if is_out_of_memory(exc):
            self._open = [smaller for smaller in self._open if smaller < size]
            logger.warning(
                "no memory is left for the CUDA graph of %d decodes: steps of that many launch their kernels one by "
                "one, which is slower. Lower --gpu-memory-utilization, or --max-num-seqs.",
                size,
            )
            return
        self._open.clear()
        logger.error(
            "the CUDA graph of %d decodes can't be captured, and no other one is tried: steps launch their kernels one "
            "by one, as with --enforce-eager, which is slower",
            size,
            exc_info=exc,
        )


def _least(ascending: Sequence[int], at_least: int) -> int | None:
    index = bisect.bisect_left(ascending, at_least)
    return ascending[index] if index < len(ascending) else None
