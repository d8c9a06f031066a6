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
from .reading import AdapterReader, ReadAdapter

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

    def load(self, adapter: Adapter) -> str:
        """Read an adapter and keep it; return the digest of its files.

        Raises:
            ConfigError: it can't be read, or is not for this model, or not the one that it was.
        """
        read = self._read(adapter)
        self._weights[adapter.load_id] = self._reader.put_in_place(read)
        return read.digest

    def try_load(self, adapter: Adapter) -> str | ErrorInfo:
        """The same; return why it can't be loaded instead, if so."""
        read = self.try_read(adapter)
        if isinstance(read, ErrorInfo):
            return read
        return self.try_put(adapter, read) or read.digest

    def try_read(self, adapter: Adapter) -> ReadAdapter | ErrorInfo:
        """Read an adapter, on whatever thread, or say why it can't be; `try_put` keeps it."""
        try:
            return self._read(adapter)
        except ConfigError as exc:
            return InvalidRequest(exc.message, param="lora_path").to_info()
        except (MemoryError, torch.OutOfMemoryError):
            return _no_memory(adapter)

    def try_put(self, adapter: Adapter, read: ReadAdapter) -> ErrorInfo | None:
        """Keep an adapter that was read, between two steps; return why it can't be, None if it could."""
        try:
            self._weights[adapter.load_id] = self._reader.put_in_place(read)
        except (MemoryError, torch.OutOfMemoryError):
            return _no_memory(adapter)
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

    def _read(self, adapter: Adapter) -> ReadAdapter:
        started = time.perf_counter()
        try:
            read = self._reader.read(Path(adapter.path))
        except ConfigError as exc:
            raise ConfigError(f"adapter {adapter.name!r}: {exc.message}") from exc
        except OSError as exc:
            # The path is a client's: too long a name, a link to itself, files of others.
            raise ConfigError(f"adapter {adapter.name!r}: its files can't be read: {exc.strerror}.") from exc
        if adapter.digest not in ("", read.digest):
            raise ConfigError(
                f"adapter {adapter.name!r}: the files in {adapter.path} are not the ones that it was loaded from "
                f"(their digest is {read.digest}, not {adapter.digest}): another answer would go on where it began. "
                "Load the adapter again, from a directory that stays as it is."
            )
        logger.info("adapter %r: read in %.2f s", adapter.name, time.perf_counter() - started)
        return read

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


def _no_memory(adapter: Adapter) -> ErrorInfo:
    return InvalidRequest(
        f"adapter {adapter.name!r}: no memory is left to load it; unload another one.", param="lora_path"
    ).to_info()
