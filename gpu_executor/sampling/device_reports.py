"""Logprobs of tokens that the host does not know yet: asked for before the draws are done, read after.

Few best tokens of a row are found by the backend; whoever wants more gets the row sorted, a copy of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagewire.ipc.outputs import TokenLogprobs

from ..devices.base import Device, Download
from ..kernels.device_draws import ChunkBests, Reports, ReportTable
from ..kernels.device_sampling_ops import DeviceSamplingOps
from .packed_results import Section


class ReportRequest(NamedTuple):
    """One token whose logprob is wanted.

    Attributes:
        row: which row of logits.
        slot: where the token stands.
        num_top: alternatives to report; -1 for the whole vocabulary.
    """

    row: int
    slot: int
    num_top: int


class ReportPlan:
    """The reports of one step, in order.

    Args:
        requests: what is asked for; may be empty.
        vocab_size: ids that can be drawn.
        max_described_top: best tokens that the backend gives; more are sorted out.

    Attributes:
        requests: see above.
        max_top: the most best tokens that the backend is asked for.
    """

    def __init__(self, requests: Sequence[ReportRequest], vocab_size: int, max_described_top: int) -> None:
        self.requests = list(requests)
        self._vocab_size = vocab_size
        all_tops = [vocab_size if request.num_top < 0 else min(request.num_top, vocab_size) for request in requests]
        # Sorted rows are read up to the most that one of their reports asks for.
        self._sorted_tops: dict[int, int] = {}
        for request, num_top in zip(requests, all_tops, strict=True):
            if num_top > max_described_top:
                self._sorted_tops[request.row] = max(num_top, self._sorted_tops.get(request.row, 0))
        self._num_tops = all_tops
        self._described_tops = [0 if num_top > max_described_top else num_top for num_top in all_tops]
        self.max_top = max(self._described_tops, default=0)

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def rows(self) -> list[int]:
        """Rows of logits that are reported on, without repetition."""
        return list(dict.fromkeys(request.row for request in self.requests))

    def sections(self) -> list[Section]:
        """Return what the reports take of a step's results: the fields of `Reports`."""
        count = len(self.requests)
        return [
            Section(torch.float64, (count,)),
            Section(torch.float32, (count,)),
            Section(torch.int32, (count,)),
            Section(torch.int32, (count, self.max_top)),
            Section(torch.float32, (count, self.max_top)),
        ]

    def arrays(self, places: dict[int, int] | None = None) -> list[np.ndarray]:
        """Return the arrays of a `ReportTable`, in the order of its fields.

        Args:
            places: row -> where its logits are, if they are copies; None if rows are where they were.
        """
        rows = [request.row if places is None else places[request.row] for request in self.requests]
        slots = [request.slot for request in self.requests]
        return [np.array(column, dtype=np.int32) for column in (rows, slots, self._described_tops)]

    def launch(
        self,
        ops: DeviceSamplingOps,
        device: Device,
        logits: Tensor,
        bests: ChunkBests,
        tokens: Tensor,
        table: Sequence[Tensor],
        results: Sequence[Tensor],
    ) -> dict[int, Download]:
        """Launch the reports.

        Args:
            ops: makes them.
            device: where they are made.
            logits: [num_rows, at least vocab_size] float32, raw.
            bests: of these logits, with groups if `max_top` is not 0.
            tokens: [num_slots] int64.
            table: `arrays` on the device.
            results: the tensors of `sections`; written.

        Returns:
            For each row that has to be sorted, its best token ids and their logprobs: [2, num_top] float64.
        """
        reports = Reports(*results)
        ops.describe_tokens(logits, self._vocab_size, bests, tokens, ReportTable(*table, max_top=self.max_top), reports)
        found = {}
        first_report = {request.row: index for index, request in reversed(list(enumerate(self.requests)))}
        for row, num_top in self._sorted_tops.items():
            report = first_report[row]
            raw = logits.index_select(0, table[0][report : report + 1])[0, : self._vocab_size]
            values, token_ids = raw.sort(descending=True, stable=True)
            logprobs = (values[:num_top].double() - reports.normalizers[report]).float()
            found[row] = device.download(torch.stack([token_ids[:num_top].double(), logprobs.double()]))
        return found

    def read(
        self, tokens: np.ndarray, results: Sequence[np.ndarray], sorted_rows: dict[int, Download]
    ) -> list[TokenLogprobs]:
        """Return the reports, in order.

        Args:
            tokens: [num_slots] int64.
            results: the arrays of `sections`.
            sorted_rows: what `launch` gave.
        """
        _, logprobs, ranks, top_ids, top_logprobs = results
        tops = {row: download.array() for row, download in sorted_rows.items()}
        reports = []
        for index, (request, num_top) in enumerate(zip(self.requests, self._num_tops, strict=True)):
            if num_top == self._described_tops[index]:
                best_ids, best_logprobs = top_ids[index, :num_top], top_logprobs[index, :num_top]
            else:
                best_ids, best_logprobs = tops[request.row][:, :num_top]
            reports.append(
                TokenLogprobs(
                    token_id=int(tokens[request.slot]),
                    logprob=float(logprobs[index]),
                    rank=int(ranks[index]),
                    top_token_ids=best_ids.astype(np.int64).tolist(),
                    top_logprobs=best_logprobs.astype(np.float64).tolist(),
                )
            )
        return reports
