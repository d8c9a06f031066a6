"""The adapters that a rank holds, by load id, and which tokens of a step each is for."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pagewire.ipc.adapters import Adapter
from pagewire.ipc.errors import ConfigError, EngineError, ErrorInfo, InvalidRequest
from pagewire.ipc.steps import ExecuteStep, ScheduledRow

from ..kernels.low_rank import AdapterTokens, AdapterWeights
from .reading import AdapterReader

logger = logging.getLogger(__name__)


class AdapterStore:
    """What `LoadAdapter` and `UnloadAdapter` leave.

    Args:
        reader: reads the files.
    """

    def __init__(self, reader: AdapterReader) -> None:
        self._reader = reader
        self._weights: dict[int, AdapterWeights] = {}
        self._adapter_of: dict[int, int] = {}  # row id -> load id, of the rows that have one
        self._last: tuple[list[tuple[int, int]], tuple[AdapterTokens, ...]] = ([], ())

    def __contains__(self, load_id: int) -> bool:
        return load_id in self._weights

    def most_bytes(self) -> int:
        """Return what an adapter takes here at most."""
        return self._reader.most_bytes()

    def load(self, adapter: Adapter) -> None:
        """Read an adapter.

        Raises:
            ConfigError: it can't be read, or is not for this model.
        """
        started = time.perf_counter()
        try:
            self._weights[adapter.load_id] = self._reader.read(Path(adapter.path))
        except ConfigError as exc:
            raise ConfigError(f"adapter {adapter.name!r}: {exc.message}") from exc
        except OSError as exc:
            # The path is a client's: too long a name, a link to itself, files of others.
            raise ConfigError(f"adapter {adapter.name!r}: its files can't be read: {exc.strerror}.") from exc
        logger.info("adapter %r: loaded in %.2f s", adapter.name, time.perf_counter() - started)

    def try_load(self, adapter: Adapter) -> ErrorInfo | None:
        """Read an adapter; return why it can't be, None if it could."""
        try:
            self.load(adapter)
        except ConfigError as exc:
            return InvalidRequest(exc.message, param="lora_path").to_info()
        except (MemoryError, torch.OutOfMemoryError):
            return InvalidRequest(
                f"adapter {adapter.name!r}: no memory is left to load it; unload another one.", param="lora_path"
            ).to_info()
        return None

    def unload(self, load_id: int) -> None:
        """Forget an adapter; one that is not held is passed over."""
        self._weights.pop(load_id, None)
        self._last = ([], ())

    def follow(self, step: ExecuteStep) -> dict[int, ErrorInfo]:
        """Note which adapters a step's new rows have; return why those can't run that have one which is not here."""
        for row_id in step.removed_row_ids:
            self._adapter_of.pop(row_id, None)
        errors = {}
        for row in step.new_rows:
            if row.adapter_id in self._weights:
                self._adapter_of[row.row_id] = row.adapter_id
            elif row.adapter_id:
                error = EngineError(f"row {row.row_id} has adapter {row.adapter_id}, which is not loaded")
                errors[row.row_id] = error.to_info()
        return errors

    def tokens_of(self, rows: Sequence[ScheduledRow]) -> tuple[AdapterTokens, ...]:
        """Return which adapters a step computes with, and for which tokens; empty: with none.

        Args:
            rows: that the step computes, in batch order.
        """
        if not self._adapter_of:
            return ()
        spans = [(self._adapter_of.get(row.row_id, 0), row.num_scheduled_tokens) for row in rows]
        if not any(load_id for load_id, _ in spans):
            return ()
        if spans != self._last[0]:  # a step of decodes is mostly as the one before
            self._last = (spans, self._divide(spans))
        return self._last[1]

    def _divide(self, spans: Sequence[tuple[int, int]]) -> tuple[AdapterTokens, ...]:
        device = self._reader.device
        of_token = np.repeat([load_id for load_id, _ in spans], [num_tokens for _, num_tokens in spans])
        # In an order that does not hang on who comes first in the batch: kernels may keep what they make of a set.
        load_ids = sorted({load_id for load_id, _ in spans if load_id})
        if len(load_ids) == 1 and np.all(of_token):
            return (AdapterTokens(self._weights[load_ids[0]], None),)
        return tuple(
            AdapterTokens(self._weights[load_id], torch.from_numpy(np.flatnonzero(of_token == load_id)).to(device))
            for load_id in load_ids
        )
