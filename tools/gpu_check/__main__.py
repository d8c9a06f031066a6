"""Checks and measures the engine on a GPU, in under four minutes: `python -m tools.gpu_check --output gpu-check`.

It compares every kernel with the reference, measures ops beside the device's limits, and runs a model of the shape of
Llama 3.1 8B with random weights: offline, behind its server, and in transformers. Nothing is fetched. It writes
gpu-check.json (all figures) and gpu-check.md (a report). Exit code 1 if a kernel is wrong or a part failed, 2 if there
is no GPU.

    python -m tools.gpu_check --device cpu    tries the check itself, tiny, with interpreted kernels
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec

from tools.gpu_check.parts import BUDGET_S, PARTS, SKIPPED, Part, SkipPart, run_all, run_part
from tools.gpu_check.presence import NO_GPU, why_no_gpu
from tools.gpu_check.records import AnyRecord, Check, PartEnd
from tools.gpu_check.report import markdown
from tools.gpu_check.setting import WHOLE, Share, make_setting

_FAILED = 1
_PATIENCE_ON_CPU = 4.0  # interpreted kernels take their time


def main(argv: list[str] | None = None) -> int:
    """Run the check and return the exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.part is not None:
        part = next(part for part in PARTS if part.name == arguments.part)
        try:
            run_part(
                part, make_setting(arguments.device, arguments.directory, Share(*arguments.share)), arguments.records
            )
        except SkipPart as exc:
            sys.stderr.write(f"{exc}\n")
            return SKIPPED
        return 0
    if arguments.device == "cuda" and (reason := why_no_gpu()) is not None:
        sys.stderr.write(f"gpu_check: {reason}\n")
        return NO_GPU
    setting = make_setting(arguments.device, Path())
    patience = _PATIENCE_ON_CPU if setting.is_tiny else 1.0
    parts = [
        # Interpreted kernels are not compiled: one process will do.
        part._replace(limit_s=patience * part.limit_s, processes=1 if setting.is_tiny else part.processes)
        for part in PARTS
        if not arguments.only or part.name in arguments.only
    ]
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        directory = Path(folder)
        path = directory / "records.jsonl"

        def command(part: Part, share: Share) -> list[str]:
            flags = ["--part", part.name, "--device", arguments.device, "--directory", folder, "--records", str(path)]
            return [sys.executable, "-m", "tools.gpu_check", *flags, "--share", *map(str, share)]

        records = run_all(parts, command, path, patience * arguments.budget, lambda line: print(line, flush=True))
    _write(arguments.output, records, markdown(setting.model, records, is_trial=setting.is_tiny))
    is_wrong = any(isinstance(record, Check) and not record.passed for record in records)
    has_failed = any(isinstance(record, PartEnd) and record.outcome == "failed" for record in records)
    return _FAILED if is_wrong or has_failed else 0


def _write(output: Path, records: list[AnyRecord], report: str) -> None:
    print(f"\n{report}")
    output.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(records), indent=2) + b"\n")
    output.with_suffix(".md").write_text(report, encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a trial of the check itself")
    parser.add_argument("--output", type=Path, default=Path("gpu-check"), help="the files' name without .json and .md")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all parts")
    parser.add_argument("--only", action="append", choices=names, default=[], help="a part; may be repeated")
    # How the check calls itself, once a part, or several times where processes share it.
    parser.add_argument("--part", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--share", type=int, nargs=2, default=WHOLE, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--records", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
