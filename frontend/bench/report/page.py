"""The page: a table of figures, distributions of latencies, the course of the runs, what was asked for and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape

import numpy as np

from .chart import NUM_COLORS, line_chart
from .runs import Run

_NUM_BINS = 50
_LATENCIES = {"ttft": "Time to first token", "itl": "Time between tokens", "e2el": "Whole request"}
_FIGURES = (
    ("completed", "Requests that succeeded", ""), ("failed", "Requests that failed", ""), ("duration", "Duration", "s"),
    ("request_throughput", "Requests", "req/s"), ("request_goodput", "Good requests", "req/s"),
    ("output_throughput", "Output tokens", "tok/s"), ("total_token_throughput", "All tokens", "tok/s"),
    ("max_output_tokens_per_s", "Output tokens, best second", "tok/s"),
    ("max_concurrent_requests", "Most requests at once", ""), ("total_input_tokens", "Prompt tokens", ""),
    ("total_output_tokens", "Output tokens in all", ""),
)  # fmt: skip
_SETTINGS = (
    "date", "backend", "base_url", "model_id", "dataset_name", "num_prompts", "seed", "request_rate", "burstiness",
    "max_concurrency", "settings", "machine",
)  # fmt: skip
# Colours that people with colour blindness tell apart, on light and dark paper alike.
_COLORS = ("#3b82c4", "#d97706", "#2f9e6e", "#c2415c", "#8b5cf6", "#7c7a1f", "#0e9aa7", "#a3632b")
_STYLE = (
    ":root{color-scheme:light dark;--ink:#1d2430;--paper:#fff;--line:#d5dae1}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--paper:#14181f;--line:#39414d}}"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}"
    "body{margin:0 auto;padding:24px;max-width:1240px}"
    "h1{margin:0}h2{margin:32px 0 8px;font-size:1.2em}figure{margin:0}figcaption{font-weight:600}"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(340px,100%),1fr));gap:20px}"
    ".scroll{overflow-x:auto}table{border-collapse:collapse}"
    "th,td{padding:3px 12px;border-bottom:1px solid var(--line);text-align:right}"
    "th:first-child{text-align:left;font-weight:400}thead th{font-weight:600}.text{text-align:left}"
    "svg{width:100%;height:auto}svg text{font-size:11px;fill:var(--ink)}.grid{stroke:var(--line);fill:none}"
    ".line{fill:none;stroke-width:1.6}.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}"
    + "".join(
        f".line.c{i}{{stroke:{color}}}circle.c{i}{{fill:{color}}}.key.c{i}{{background:{color}}}"
        for i, color in enumerate(_COLORS)
    )
)


def report_page(runs: Sequence[Run], *, title: str) -> str:
    """Return the HTML of a report, which asks for nothing outside itself.

    Args:
        runs: one or more; several are compared.
        title: stands above.
    """
    head = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main><h1>{escape(title)}</h1>"
    )
    parts = [
        head,
        _key(runs),
        "<h2>Figures</h2>",
        _table(runs, _figure_rows(runs), "figure"),
        *_throughput_against_latency(runs),
        *_charts("Distributions", _distributions(runs)),
        *_charts("Course", _courses(runs)),
        _missing(runs),
        "<h2>Settings</h2>",
        _table(runs, _setting_rows(runs), "setting", is_text=True),
        "</main></body></html>\n",
    ]
    return "".join(parts)


def _key(runs: Sequence[Run]) -> str:
    names = (f'<span><i class="key c{i % NUM_COLORS}"></i>{escape(run.name)}</span> ' for i, run in enumerate(runs))
    return f"<p>{''.join(names)}</p>"


def _table(runs: Sequence[Run], rows: Iterator[tuple[str, list[str]]], what: str, *, is_text: bool = False) -> str:
    kind = ' class="text"' if is_text else ""
    head = "".join(f'<th scope="col"{kind}>{escape(run.name)}</th>' for run in runs)
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(f"<td{kind}>{escape(cell)}</td>" for cell in cells)}</tr>'
        for label, cells in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr><th scope="col">{what}</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _figure_rows(runs: Sequence[Run]) -> Iterator[tuple[str, list[str]]]:
    for key, label, unit in _FIGURES:
        if any(run.document.get(key) is not None for run in runs):
            yield f"{label} ({unit})" if unit else label, [_figure(run.document.get(key)) for run in runs]
    for metric, label in {**_LATENCIES, "tpot": "Time per output token"}.items():
        for statistic in dict.fromkeys(_statistics(runs, metric)):
            cells = [_figure(run.document.get(f"{statistic}_{metric}_ms")) for run in runs]
            yield f"{label}, {statistic} (ms)", cells


def _statistics(runs: Sequence[Run], metric: str) -> Iterator[str]:
    ending = f"_{metric}_ms"
    for run in runs:
        yield from (key.removesuffix(ending) for key in run.document if key.endswith(ending))


def _setting_rows(runs: Sequence[Run]) -> Iterator[tuple[str, list[str]]]:
    for key in _SETTINGS:
        if any(run.document.get(key) is not None for run in runs):
            yield key.replace("_", " "), [_setting(run.document.get(key)) for run in runs]


def _distributions(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    detailed = [run.has_details for run in runs]
    for metric, label in _LATENCIES.items() if any(detailed) else ():
        samples = [run.samples_ms(metric) if run.has_details else [] for run in runs]
        known = [value for values in samples for value in values]
        if not known:
            continue
        edges = np.linspace(0.0, float(np.percentile(known, 99.5)) or 1.0, _NUM_BINS + 1)
        series = [(run.name, _outline(values, edges)) for run, values in zip(runs, samples, strict=True)]
        yield label, line_chart(f"Distribution of: {label}", "ms, up to p99.5", "% of values", series)


def _outline(values: Sequence[float], edges: np.ndarray) -> list[tuple[float, float]]:
    """Return the outline of a histogram of shares in percent."""
    if not values:
        return []
    counts, _ = np.histogram(values, bins=edges)
    shares = 100 * counts / len(values)
    points = [(float(edges[0]), 0.0)]
    for left, right, share in zip(edges, edges[1:], shares, strict=False):
        points += [(float(left), float(share)), (float(right), float(share))]
    return points


def _courses(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    if not any(run.has_times for run in runs):
        return

    def drawn(label: str, unit: str, read: Callable[[Run], list[tuple[float, float]]]) -> tuple[str, str]:
        series = [(run.name, read(run) if run.has_times else []) for run in runs]
        return label, line_chart(label, "seconds since the first request", unit, series)

    yield drawn("Requests under way", "requests", Run.concurrency)
    yield drawn("Output tokens a second", "tok/s", Run.throughput)


def _throughput_against_latency(runs: Sequence[Run]) -> Iterator[str]:
    """Draw each run as a point, if there are several."""
    if len(runs) < 2:
        return
    charts = []
    for metric, label in (("ttft", "Time to first token, median"), ("itl", "Time between tokens, median")):
        places = [(run.document.get("output_throughput"), run.document.get(f"median_{metric}_ms")) for run in runs]
        series = [
            (run.name, [] if x is None or y is None else [(float(x), float(y))])
            for run, (x, y) in zip(runs, places, strict=True)
        ]
        chart = line_chart(f"{label} by throughput", "output tok/s", "ms", series, has_dots=True)
        charts.append((label, chart))
    yield from _charts("Throughput against latency", iter(charts))


def _charts(heading: str, charts: Iterator[tuple[str, str]]) -> Iterator[str]:
    figures = [f"<figure><figcaption>{escape(label)}</figcaption>{chart}</figure>" for label, chart in charts]
    if figures:
        yield f'<h2>{escape(heading)}</h2><div class="charts">{"".join(figures)}</div>'


def _missing(runs: Sequence[Run]) -> str:
    names = [run.name for run in runs if not run.has_times]
    if not names:
        return ""
    return f"<p>Saved without --save-detailed, so that nothing is drawn of: {escape(', '.join(names))}.</p>"


def _figure(value: object) -> str:
    match value:
        case float():
            return f"{value:,.2f}"
        case int():
            return f"{value:,}"
        case _:
            return "-"


def _setting(value: object) -> str:
    return "-" if value is None else str(value)
