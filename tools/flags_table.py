"""Write the tables of flags into the documents that show them: `python -m tools.flags_table`. A test keeps them so.

A document shows one between the lines `<!-- flags: begin -->` and `<!-- flags: end -->`, that of the benchmark between
lines of `bench flags`, those of the
other benchmarks between lines of `offline bench flags`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from pagewire.frontend.bench.offline.config import (
    BenchKernelsConfig,
    BenchLatencyConfig,
    BenchStartupConfig,
    BenchThroughputConfig,
)
from pagewire.frontend.cli.flags import Flag, bench_serve_flags, config_flags, engine_flags, listen_flags, server_flags
from pagewire.frontend.quantize.config import QuantizeConfig
from tools.file_sizes import ROOT

BEGIN, END = "<!-- flags: begin (made by python -m tools.flags_table) -->", "<!-- flags: end -->"
BENCH_BEGIN, BENCH_END = BEGIN.replace("flags:", "bench flags:"), END.replace("flags:", "bench flags:")
OFFLINE_BEGIN, OFFLINE_END = (
    BEGIN.replace("flags:", "offline bench flags:"),
    END.replace("flags:", "offline bench flags:"),
)
QUANTIZE_BEGIN, QUANTIZE_END = BEGIN.replace("flags:", "quantize flags:"), END.replace("flags:", "quantize flags:")
DOCUMENTS = ("docs/cli.md", "docs/benchmarking.md", "docs/quantization.md", "README.md")


def flags_table(all_flags: Iterable[Flag]) -> str:
    """Return one Markdown table a config, in the order of `--help`."""
    parts = []
    for title, flags in groupby(all_flags, key=lambda flag: flag.title):
        rows = "\n".join(_row(flag) for flag in flags)
        parts.append(f"**{title}**\n\n| flag | default | |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _row(flag: Flag) -> str:
    name = f"`{flag.name}`" + (f", `{flag.opposite}`" if flag.is_switch else "")
    default = f"`{flag.shown_default}`" if flag.shown_default else ""
    return f"| {name} | {default} | {flag.description.replace('|', chr(92) + '|')} |"


def with_table(text: str) -> str:
    """Return the document with its tables current; a document without the marks is returned as it is."""
    text = _with_part(text, BEGIN, END, [*engine_flags(), *server_flags(), *listen_flags()])
    text = _with_part(text, BENCH_BEGIN, BENCH_END, bench_serve_flags())
    text = _with_part(text, OFFLINE_BEGIN, OFFLINE_END, _offline_bench_flags())
    return _with_part(text, QUANTIZE_BEGIN, QUANTIZE_END, config_flags(QuantizeConfig))


def _offline_bench_flags() -> list[Flag]:
    configs = (BenchThroughputConfig, BenchLatencyConfig, BenchStartupConfig, BenchKernelsConfig)
    return [flag for config in configs for flag in config_flags(config) if flag.section == "bench"]


def _with_part(text: str, first_mark: str, last_mark: str, flags: Iterable[Flag]) -> str:
    head, begin, rest = text.partition(first_mark)
    _, end, tail = rest.partition(last_mark)
    return f"{head}{begin}\n{flags_table(flags)}\n{end}{tail}" if begin and end else text


def main() -> int:
    """Rewrite the documents."""
    for name in DOCUMENTS:
        path = ROOT / Path(name)
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
