"""What the engine is to reach on a GPU, and whether a run did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pagewire.checkpoint.estimate.devices import DeviceSpec
from pagewire.checkpoint.model_config import ModelConfig
from tools.gpu_check.records import AnyRecord, Check, GenerateRun, OfflineRun, ServedRun
from tools.gpu_check.roof import decode_seconds

_DECODE_SHARE = 0.70
_SINGLE_ITL = 1.3
_FASTER_THAN_GENERATE = 6.0
# Published for one A100 with this shape at 10 requests a second: what a served run may not be below.
_SERVED_TOKENS_PER_S, _TTFT_MS, _ITL_MS = 2400.0, (45.0, 120.0), 8.0


class Goal(NamedTuple):
    """One goal; `is_met` is None if the run did not measure it."""

    text: str
    found: str
    is_met: bool | None


def goals(model: ModelConfig, records: Sequence[AnyRecord], roof: DeviceSpec | None) -> Iterator[Goal]:
    """Yield all goals.

    Args:
        model: the shape.
        records: of the run.
        roof: the data sheet, or what was measured of an unknown device; None: no limit is known.
    """
    checks = [record for record in records if isinstance(record, Check)]
    failed = sum(not check.passed for check in checks)
    yield Goal(
        "every kernel is right",
        f"{len(checks) - failed} of {len(checks)} comparisons" if checks else "",
        failed == 0 if checks else None,
    )
    offline = {record.num_requests: record for record in records if isinstance(record, OfflineRun)}
    yield _decode_share(model, offline, roof)
    yield _single_itl(model, offline, roof)
    yield _beside_generate(offline, records)
    yield from _served(records)


def _decode_share(model: ModelConfig, offline: dict[int, OfflineRun], roof: DeviceSpec | None) -> Goal:
    text = f"decode of the largest batch at {_DECODE_SHARE:.0%} of its limit or more"
    run = offline[max(offline)] if offline else None
    share = None if run is None or roof is None else share_of_limit(model, run, roof)
    if share is None or run is None:
        return Goal(text, "", None)
    return Goal(text, f"{share:.1%} with {run.num_requests} requests", share >= _DECODE_SHARE)


def _single_itl(model: ModelConfig, offline: dict[int, OfflineRun], roof: DeviceSpec | None) -> Goal:
    text = f"one request: ITL at most {_SINGLE_ITL} x its limit"
    share = None if 1 not in offline or roof is None else share_of_limit(model, offline[1], roof)
    return Goal(
        text, "" if share is None else f"{1 / share:.2f} x", None if share is None else 1 / share <= _SINGLE_ITL
    )


def share_of_limit(model: ModelConfig, run: OfflineRun, roof: DeviceSpec) -> float | None:
    """Return which share of the limit's tokens a second the decodes of a run reached."""
    if run.decode_tokens_per_s is None or run.decode_context is None:
        return None
    return (
        run.decode_tokens_per_s * decode_seconds(model, run.num_requests, run.decode_context, roof) / run.num_requests
    )


def _beside_generate(offline: dict[int, OfflineRun], records: Sequence[AnyRecord]) -> Goal:
    text = f"{_FASTER_THAN_GENERATE:g} x transformers' generate or more, at the same batch"
    for record in records:
        if isinstance(record, GenerateRun) and record.num_requests in offline:
            times = offline[record.num_requests].output_tokens_per_s / record.output_tokens_per_s
            return Goal(text, f"{times:.1f} x at {record.num_requests} requests", times >= _FASTER_THAN_GENERATE)
    return Goal(text, "", None)


def _served(records: Sequence[AnyRecord]) -> Iterator[Goal]:
    run = next((record for record in records if isinstance(record, ServedRun)), None)
    rate = 10.0 if run is None else run.request_rate
    # A rate of 10 with 240 tokens each can't give more than 2,400 a second; the last requests' tail costs some of it.
    least = _SERVED_TOKENS_PER_S * 0.9
    text = f"served at {rate:g} requests/s: {least:,.0f} tok/s or more"
    yield Goal(
        text,
        "" if run is None else f"{run.output_tokens_per_s:,.0f}",
        None if run is None else run.output_tokens_per_s >= least,
    )
    for label, limit, found in (
        ("TTFT p50", _TTFT_MS[0], None if run is None else run.ttft_ms[0]),
        ("TTFT p99", _TTFT_MS[1], None if run is None else run.ttft_ms[1]),
        ("ITL p50", _ITL_MS, None if run is None else run.itl_ms[0]),
    ):
        text = f"served: {label} at most {limit:g} ms"
        yield Goal(text, "" if found is None else f"{found:.1f} ms", None if found is None else found <= limit)
