"""What a part of the check finds out, a line of JSON each: a part that is ended early leaves what it has."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

PartOutcome = Literal["done", "failed", "out of time", "skipped"]


class Record(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One finding; not a place for fields."""


class Machine(Record, frozen=True, kw_only=True):
    """What was measured on.

    Attributes:
        device: its name as the driver has it.
        versions: library -> version.
    """

    device: str
    memory_bytes: int
    versions: dict[str, str]
    date: str


class Ceiling(Record, frozen=True, kw_only=True):
    """What the device does at most, measured by operations of torch; `unit` is GB/s or TFLOP/s."""

    name: Literal["copy", "read", "products"]
    value: float
    unit: str


class Check(Record, frozen=True, kw_only=True):
    """One comparison with the reference.

    Attributes:
        op: which kernel.
        case: on what.
        error: `correctness.relative_error`; of draws the share of rows that differ; None if it is no number.
        limit: what it may be.
        failure: what was raised instead; empty if nothing was.
    """

    op: str
    case: str
    error: float | None
    limit: float
    failure: str = ""

    @property
    def passed(self) -> bool:
        """Whether the op is right."""
        return not self.failure and self.error is not None and self.error <= self.limit


class OpRate(Record, frozen=True, kw_only=True):
    """One op on the shapes of the model.

    Attributes:
        op: as the roofline calls it, or another name.
        num_rows: tokens of the call.
        seconds: of a call, on the device.
        num_bytes: that it must read and write.
        operations: of products.
    """

    op: str
    num_rows: int
    seconds: float
    num_bytes: float
    operations: float


class OfflineRun(Record, frozen=True, kw_only=True):
    """Equal requests given to an engine at once, without a server.

    Attributes:
        output_tokens_per_s: from the first prompt to the last token, prefills included.
        decode_tokens_per_s: while all requests decode and none prefills; None if that never was.
        decode_context: mean tokens of a request in the KV cache meanwhile.
        itl_ms: median and 99th percentile of the time of such a step.
        device_ms: mean time of such a step on the device.
        host_gap_ms: mean time that the device idled before such a step.
        ttft_ms: median and 99th percentile of all requests.
    """

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    ttft_ms: tuple[float, float]
    decode_tokens_per_s: float | None = None
    decode_context: float | None = None
    itl_ms: tuple[float, float] | None = None
    device_ms: float | None = None
    host_gap_ms: float | None = None


class EngineStart(Record, frozen=True, kw_only=True):
    """How the engine came up: seconds, and its line about memory."""

    seconds: float
    memory: str


class ServedRun(Record, frozen=True, kw_only=True):
    """Requests over HTTP at a rate; ttft_ms and itl_ms are median and 99th percentile."""

    request_rate: float
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    ttft_ms: tuple[float, float]
    itl_ms: tuple[float, float]


class GenerateRun(Record, frozen=True, kw_only=True):
    """The same requests in one call of transformers' `generate`."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float


class PartEnd(Record, frozen=True, kw_only=True):
    """How a part ended; `reason` says why it did not go to its end."""

    part: str
    outcome: PartOutcome
    seconds: float
    reason: str = ""


AnyRecord = Machine | Ceiling | Check | OpRate | OfflineRun | EngineStart | ServedRun | GenerateRun | PartEnd


class RecordWriter:
    """Appends records to a file; each is there as soon as it was added."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, record: AnyRecord) -> None:
        """Write one."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")


def read_records(path: Path) -> list[AnyRecord]:
    """Return what a file holds; a last line that was cut off is left out."""
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    decoder = msgspec.json.Decoder(AnyRecord)
    return [decoder.decode(line) for line in lines]
