"""Plants errors into the Triton kernels, one at a time, and says which ones their tests do not notice.

    python -m tools.plant_errors                   all errors
    python -m tools.plant_errors rms_norm rotary   those of some kernels' files

Run it after a change to a kernel's tests or tolerances. The sources are not touched: tests run, interpreted, on a copy
of the file that is wrong, and are ended after a time: an error that makes a kernel hang is one that shows. The exit
code is 1 if an error goes unnoticed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from .errors import ERRORS, FILE_VARIABLE, MODULE_VARIABLE, ROOT, PlantedError

_PASSED, _FAILED = 0, 1  # pytest's exit codes
DEFAULT_TIME_LIMIT = 300.0  # seconds; the slowest tests of a kernel take some twenty on a machine that is not busy


class Verdict(StrEnum):
    """What the tests make of an error."""

    NOTICED = "noticed"
    HANGS = "noticed, it hangs"
    UNNOTICED = "NOT NOTICED"
    NOT_RUN = "tests did not run"


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the errors, print a line for each, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.plant_errors", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("kernel", nargs="*", help="files' names without .py (default: all)")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=DEFAULT_TIME_LIMIT,
        metavar="SECONDS",
        help="of the tests of one error: those that take longer hang (default: %(default)g)",
    )
    options = parser.parse_args(arguments)
    names = options.kernel
    errors = [error for error in ERRORS if not names or Path(error.file).stem in names]
    if not errors:
        parser.error(f"no errors for {', '.join(names)}: there are some for {', '.join(_kernels())}")
    failed = 0
    for error in errors:
        verdict, output = run_with(error, time_limit=options.time_limit)
        print(f"{verdict:18} {Path(error.file).stem}: {error.what}", flush=True)
        if verdict is Verdict.NOT_RUN:
            print(output)
        failed += verdict in (Verdict.UNNOTICED, Verdict.NOT_RUN)
    return 1 if failed else 0


def run_with(error: PlantedError, *, time_limit: float = DEFAULT_TIME_LIMIT) -> tuple[Verdict, str]:
    """Run an error's tests with the error in place; return the verdict, and what pytest printed.

    Args:
        error: what to plant.
        time_limit: seconds that the tests may take.
    """
    with tempfile.TemporaryDirectory(prefix="pagewire-planted-") as directory:
        source = Path(directory) / Path(error.file).name
        source.write_text(error.planted(), encoding="utf-8")
        plugins = ["-p", "tools.plant_errors.swapped_module", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-x", *plugins, error.tests],
                cwd=ROOT,
                env=os.environ | {MODULE_VARIABLE: error.module, FILE_VARIABLE: str(source)},
                capture_output=True,
                text=True,
                check=False,
                timeout=time_limit,
            )
        except subprocess.TimeoutExpired:
            return Verdict.HANGS, ""
    verdict = {_PASSED: Verdict.UNNOTICED, _FAILED: Verdict.NOTICED}.get(done.returncode, Verdict.NOT_RUN)
    return verdict, done.stdout + done.stderr


def _kernels() -> list[str]:
    return sorted({Path(error.file).stem for error in ERRORS})


if __name__ == "__main__":
    sys.exit(main())
