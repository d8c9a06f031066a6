"""Rows that draw nothing: the hidden states of their prompts become one vector each.

A mean is summed token by token, in the order of positions and in float64: so it has the same bits however the prompt
was cut into chunks, and whoever shares the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from pagewire.ipc.errors import EngineError
from pagewire.ipc.steps import RowResult

from .batch.step_inputs import PoolSpan
from .devices.base import Device, Download


class PendingVectors:
    """The vectors that a step has completed, on their way to the host.

    Args:
        row_ids: whose they are, in order.
        vectors: [num_rows, hidden_size] float32 on the host, or a download of them.
    """

    def __init__(self, row_ids: Sequence[int], vectors: np.ndarray | Download) -> None:
        self._row_ids = row_ids
        self._vectors = vectors

    def collect(self) -> dict[int, RowResult]:
        """Wait for the vectors and return them by row id."""
        vectors = self._vectors if isinstance(self._vectors, np.ndarray) else self._vectors.array()
        return {
            row_id: _result(row_id, vector)
            for row_id, vector in zip(self._row_ids, vectors.astype("<f4", copy=False), strict=True)
        }


NO_VECTORS = PendingVectors((), np.empty((0, 0), dtype=np.float32))


class Pooler:
    """Keeps the running sums of prompts that are computed in chunks.

    Args:
        device: what steps are launched on ahead of the host; None: a step is done when its launch returns.
    """

    def __init__(self, device: Device | None) -> None:
        self._device = device
        self._sums: dict[int, Tensor] = {}  # by row id: [hidden_size] float64

    def forget(self, row_ids: Iterable[int]) -> None:
        """Drop what is kept of rows; most have nothing."""
        if self._sums:
            for row_id in row_ids:
                self._sums.pop(row_id, None)

    def pool(self, hidden: Tensor, spans: Sequence[PoolSpan]) -> PendingVectors:
        """Take in a step's tokens, and return the vectors of the prompts that it completes.

        Args:
            hidden: [num_tokens, hidden_size], of all tokens of the step, after the final norm.
            spans: the tokens of rows that are pooled.
        """
        row_ids: list[int] = []
        vectors: list[Tensor] = []
        for span in spans:
            states = hidden[span.first_token : span.first_token + span.num_tokens]
            if span.pooling == "mean":
                total = self._add(span, states)
                if not span.is_last:
                    self._sums[span.row_id] = total
                    continue
                vector = total / span.end
            elif span.is_last:
                vector = states[-1]
            else:
                continue
            row_ids.append(span.row_id)
            vectors.append(vector.to(torch.float32))
        if not row_ids:
            return NO_VECTORS
        stacked = torch.stack(vectors)
        return PendingVectors(row_ids, stacked.numpy() if self._device is None else self._device.download(stacked))

    def _add(self, span: PoolSpan, states: Tensor) -> Tensor:
        total = self._sums.pop(span.row_id, None)
        if total is None:
            assert span.end == span.num_tokens, "a mean takes every token, from the first on"
            total = torch.zeros(states.shape[1], dtype=torch.float64, device=states.device)
        for state in states.unbind():
            total += state
        return total


def _result(row_id: int, vector: np.ndarray) -> RowResult:
    if not np.isfinite(vector).all():
        error = EngineError("The model gave hidden states that are no numbers for this prompt.")
        return RowResult(row_id=row_id, error=error.to_info())
    return RowResult(row_id=row_id, pooled=vector.tobytes())
