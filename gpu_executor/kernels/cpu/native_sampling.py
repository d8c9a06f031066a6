"""The output layer, draws and logprobs of the native library: mirror of csrc/sampling_capi.cpp."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_uint32, c_void_p
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from pagewire.ipc.errors import EngineError, MachineError

from ..draws import DrawRow, OutputRows, RowLogprobs
from .native_library import LinearView, declare

_UINT32_MASK = 2**32 - 1


class DrawRequest(ctypes.Structure):
    """One row to draw from; csrc/sampling/draws.h."""

    _fields_ = (
        ("logits", c_void_p),
        ("seed", c_int64),
        ("num_draws", c_int64),
        ("top_k", c_int64),
        ("top_p", c_double),
        ("min_p", c_double),
        ("temperature", c_float),
        ("position", c_uint32),
        ("child", c_uint32),
        ("padding", c_uint32),
    )


_PROTOTYPES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "pagewire_sampling_create": (c_void_p, (c_void_p,)),
    "pagewire_sampling_destroy": (None, (c_void_p,)),
    "pagewire_draw_request_bytes": (c_int64, ()),
    "pagewire_output_layer": (
        c_int32,
        (c_void_p, LinearView, c_void_p, c_int64, c_int64, c_void_p, c_int64, *(c_void_p,) * 3),
    ),
    "pagewire_argmax": (c_int64, (c_void_p, c_void_p, c_int64, POINTER(c_float))),
    "pagewire_draw": (c_int32, (c_void_p, POINTER(DrawRequest), c_int64, c_int64, c_void_p)),
    "pagewire_describe_row": (
        c_int32,
        (c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int64, POINTER(c_double), c_void_p, c_void_p),
    ),
}


class NativeSampling:
    """What comes after the decoder stack, with its work space.

    Args:
        library: loaded.
        engine: a handle of the library; it must live longer than this object.
    """

    def __init__(self, library: ctypes.CDLL, engine: int) -> None:
        for name, (result, arguments) in _PROTOTYPES.items():
            declare(library, name, result, *arguments)
        assert library.pagewire_draw_request_bytes() == ctypes.sizeof(DrawRequest), "DrawRequest differs from csrc's"
        self._library = library
        self._handle: int | None = library.pagewire_sampling_create(engine)
        if self._handle is None:
            raise MachineError("No memory for the work space of sampling: free memory on this machine.")
        weakref.finalize(self, library.pagewire_sampling_destroy, self._handle)

    def output_layer(
        self, hidden: Tensor, weight: LinearView, num_drawable: int, kept_rows: Sequence[int]
    ) -> OutputRows:
        """See `Ops.output_layer`.

        Args:
            hidden: [num_rows, hidden_size] float32, contiguous.
            weight: the packed matrix.
            num_drawable: see there.
            kept_rows: see there.
        """
        num_rows, num_kept = hidden.shape[0], len(kept_rows)
        logits = torch.empty(num_kept, num_drawable) if num_kept else None
        best_values, best_ids = (c_float * num_rows)(), (c_int64 * num_rows)()
        status = self._library.pagewire_output_layer(
            self._handle,
            weight,
            hidden.data_ptr(),
            num_rows,
            num_drawable,
            (c_int64 * num_kept)(*kept_rows),
            num_kept,
            None if logits is None else logits.data_ptr(),
            best_values,
            best_ids,
        )
        _check(status, "the output layer", num_rows)
        return OutputRows(best_values=best_values[:], best_ids=best_ids[:], logits=logits)

    def argmax(self, row: Tensor) -> tuple[float, int]:
        """See `Ops.argmax`; `row` is float32 and contiguous."""
        value = c_float()
        index: int = self._library.pagewire_argmax(self._handle, row.data_ptr(), row.shape[0], value)
        return value.value, index

    def draw(self, rows: Sequence[DrawRow]) -> list[list[int]]:
        """See `Ops.draw`."""
        requests = (DrawRequest * len(rows))(*map(_request_of, rows))
        ends = list(accumulate((row.num_draws for row in rows), initial=0))
        token_ids = (c_int64 * ends[-1])()
        status = self._library.pagewire_draw(self._handle, requests, len(rows), rows[0].logits.shape[0], token_ids)
        _check(status, "draws", len(rows))
        return [token_ids[begin:end] for begin, end in pairwise(ends)]

    def logprobs(self, logits: Tensor, token_ids: Sequence[int], num_top: int) -> RowLogprobs:
        """See `Ops.logprobs`; `logits` is float32 and contiguous."""
        size = logits.shape[0]
        num_top = size if num_top < 0 else min(num_top, size)
        normalizer, top_ids, ranks = c_double(), (c_int64 * num_top)(), (c_int64 * len(token_ids))()
        asked = (c_int64 * len(token_ids))(*token_ids)
        status = self._library.pagewire_describe_row(
            self._handle, logits.data_ptr(), size, num_top, asked, len(token_ids), normalizer, top_ids, ranks
        )
        _check(status, "logprobs", 1)
        top_token_ids = top_ids[:]
        ids = torch.tensor([*token_ids, *top_token_ids], dtype=torch.int64)
        values = logits[ids].to(torch.float64).sub_(normalizer.value).to(torch.float32).tolist()
        return RowLogprobs(
            logprobs=values[: len(token_ids)],
            ranks=ranks[:],
            top_token_ids=top_token_ids,
            top_logprobs=values[len(token_ids) :],
        )


def _request_of(row: DrawRow) -> DrawRequest:
    return DrawRequest(
        row.logits.data_ptr(),
        row.key.seed,
        row.num_draws,
        row.filters.top_k,
        row.filters.top_p,
        row.filters.min_p,
        row.temperature,
        row.key.position & _UINT32_MASK,
        row.key.child & _UINT32_MASK,
    )


def _check(status: int, what: str, num_rows: int) -> None:
    if status:
        raise EngineError(f"no memory for the work space of {what} ({num_rows} rows): lower --max-num-seqs")
