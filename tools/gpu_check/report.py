"""The findings as Markdown, ready for docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pagewire.checkpoint.estimate.devices import DeviceSpec
from pagewire.checkpoint.model_config import ModelConfig
from tools.gpu_check.goals import goals, share_of_limit
from tools.gpu_check.records import (
    AnyRecord,
    Ceiling,
    Check,
    EngineStart,
    GenerateRun,
    Machine,
    OfflineRun,
    OpRate,
    PartEnd,
    ServedRun,
)
from tools.gpu_check.roof import data_sheet, measured_roof, op_seconds

Rows = Sequence[Sequence[str]]


def markdown(model: ModelConfig, records: Sequence[AnyRecord], *, is_trial: bool = False) -> str:
    """Return the whole report.

    Args:
        model: the shape that was run.
        records: all findings.
        is_trial: the check was tried on a CPU: its speeds mean nothing, so that they are held against no goal.
    """
    sheet, measured = (None, None) if is_trial else (data_sheet(records), measured_roof(records))
    sections = [
        _machine(records, sheet),
        "" if is_trial else _goals(model, records, sheet or measured),
        _offline(model, records, sheet, measured),
        _served(records),
        _ops(records, sheet, measured),
        _checks(records),
        _parts(records),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _machine(records: Sequence[AnyRecord], sheet: DeviceSpec | None) -> str:
    rows = []
    for record in records:
        if isinstance(record, Machine):
            versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
            rows += [("device", record.device), ("date", record.date), ("versions", versions)]
        elif isinstance(record, Ceiling):
            limit = "" if sheet is None else f", data sheet {_sheet_figure(record, sheet)}"
            rows.append((f"{record.name}, torch", f"{record.value:,.0f} {record.unit}{limit}"))
        elif isinstance(record, EngineStart):
            rows += [("start of the engine", f"{record.seconds:.1f} s"), ("memory", record.memory)]
    return "## GPU check\n\n" + _table(("", ""), rows) if rows else ""


def _sheet_figure(ceiling: Ceiling, sheet: DeviceSpec) -> str:
    return f"{sheet.flops / 1e12:,.0f}" if ceiling.name == "products" else f"{sheet.bandwidth / 1e9:,.0f}"


def _goals(model: ModelConfig, records: Sequence[AnyRecord], roof: DeviceSpec | None) -> str:
    words = {True: "met", False: "**missed**", None: "not measured"}
    rows = [(goal.text, goal.found or "-", words[goal.is_met]) for goal in goals(model, records, roof)]
    return "### Goals\n\n" + _table(("goal", "found", ""), rows)


def _offline(
    model: ModelConfig, records: Sequence[AnyRecord], sheet: DeviceSpec | None, measured: DeviceSpec | None
) -> str:
    runs = [record for record in records if isinstance(record, OfflineRun)]
    rows = [
        (
            str(run.num_requests),
            f"{run.output_tokens_per_s:,.0f}",
            _pair(run.ttft_ms),
            _figure(run.decode_tokens_per_s, 0),
            _figure(run.decode_context, 0),
            "-" if run.itl_ms is None else _pair(run.itl_ms),
            _figure(run.device_ms, 2),
            _figure(run.host_gap_ms, 3),
            *(_share(model, run, roof) for roof in (sheet, measured)),
        )
        for run in runs
    ]
    if not rows:
        return ""
    lengths = (
        f"Prompts of {runs[0].prompt_tokens} tokens, answers of {runs[0].output_tokens}; weights and KV in 16 bits."
    )
    generate = [
        f"transformers' generate, {one.num_requests} requests: {one.output_tokens_per_s:,.0f} tok/s."
        for one in records
        if isinstance(one, GenerateRun)
    ]
    header = (
        "requests", "tok/s, prefills included", "TTFT ms p50 / p99", "tok/s of decodes", "context", "ITL ms p50 / p99",
        "device ms", "host gap ms", "of the data sheet's limit", "of the measured limit",
    )  # fmt: skip
    return "\n\n".join(["### Offline", " ".join([lengths, *generate]), _table(header, rows)])


def _share(model: ModelConfig, run: OfflineRun, roof: DeviceSpec | None) -> str:
    share = None if roof is None else share_of_limit(model, run, roof)
    return "-" if share is None else f"{share:.1%}"


def _served(records: Sequence[AnyRecord]) -> str:
    rows = [
        (
            f"{run.request_rate:g}",
            str(run.num_requests),
            f"{run.prompt_tokens}, {run.output_tokens}",
            f"{run.output_tokens_per_s:,.0f}",
            _pair(run.ttft_ms),
            _pair(run.itl_ms),
        )
        for run in records
        if isinstance(run, ServedRun)
    ]
    header = ("requests/s", "requests", "prompt and output tokens", "tok/s", "TTFT ms p50 / p99", "ITL ms p50 / p99")
    return "### Served over HTTP\n\n" + _table(header, rows) if rows else ""


def _ops(records: Sequence[AnyRecord], sheet: DeviceSpec | None, measured: DeviceSpec | None) -> str:
    rows = [
        (
            rate.op,
            str(rate.num_rows),
            f"{rate.seconds * 1e6:,.1f}",
            f"{rate.num_bytes / rate.seconds / 1e9:,.0f}",
            f"{rate.operations / rate.seconds / 1e12:,.1f}" if rate.operations else "-",
            *(
                "-" if roof is None else f"{op_seconds(rate.num_bytes, rate.operations, roof) / rate.seconds:.0%}"
                for roof in (sheet, measured)
            ),
        )
        for rate in records
        if isinstance(rate, OpRate)
    ]
    header = ("op", "rows", "us", "GB/s", "TFLOP/s", "of the data sheet's limit", "of the measured limit")
    return "### Ops\n\n" + _table(header, rows) if rows else ""


def _checks(records: Sequence[AnyRecord]) -> str:
    checks = [record for record in records if isinstance(record, Check)]
    if not checks:
        return ""
    rows = [
        (
            check.op,
            check.case,
            check.failure or ("no number" if check.error is None else f"{check.error:.2g}"),
            f"{check.limit:.2g}",
        )
        for check in checks
        if not check.passed
    ]
    verdict = f"{len(checks) - len(rows)} of {len(checks)} comparisons with the reference are within their limits."
    text = "### Correctness\n\n" + verdict
    return text + "\n\n" + _table(("op", "case", "error", "limit"), rows) if rows else text


def _parts(records: Sequence[AnyRecord]) -> str:
    rows = [
        (end.part, end.outcome, f"{end.seconds:.1f}", end.reason or "-") for end in records if isinstance(end, PartEnd)
    ]
    return "### The check itself\n\n" + _table(("part", "", "s", "reason"), rows) if rows else ""


def _table(header: Sequence[str], rows: Rows) -> str:
    return "\n".join(_lines(header, rows))


def _lines(header: Sequence[str], rows: Rows) -> Iterator[str]:
    yield _line(header)
    yield "|" + "---|" * len(header)
    yield from map(_line, rows)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _pair(values: tuple[float, float]) -> str:
    return f"{values[0]:.2f} / {values[1]:.2f}"


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
