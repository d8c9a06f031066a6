"""What has to be green before a commit: format, lint, types, layout, unit tests.

    python -m tools.check            everything but the slow tests
    python -m tools.check --fix      let ruff mend what it can first
    python -m tools.check --no-tests the static checks alone

A person, pre-commit and CI all run this. Every step runs even if one before it failed: one report, not one a try.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Step(NamedTuple):
    """One check: what it is called, and the module with its arguments."""

    name: str
    command: list[str]


def steps(*, fix: bool, with_tests: bool) -> list[Step]:
    """Return the checks in the order of their run: the quick ones first."""
    # The layout (import arrows, file sizes, packaging) is a test, and so quick that it counts among the static checks.
    tests = ["tests/unit", "-m", "not slow and not gpu"] if with_tests else ["tests/unit/project/test_layout.py"]
    return [
        Step("format", ["ruff", "format", "--quiet", *([] if fix else ["--check", "--diff"]), "."]),
        Step("lint", ["ruff", "check", "--quiet", *(["--fix"] if fix else []), "."]),
        Step("types", ["mypy", "--no-error-summary", ".typing/pagewire", "tools"]),
        Step("unit tests" if with_tests else "layout", ["pytest", "-q", *tests]),
    ]


def main() -> int:
    """Run the checks and return the exit code: 0 if all are green."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.check", description="Format, lint, types, layout, unit tests."
    )
    parser.add_argument("--fix", action="store_true", help="let ruff format and mend what it can")
    parser.add_argument("--no-tests", action="store_true", help="the static checks alone")
    arguments = parser.parse_args()
    results: list[tuple[Step, bool, float]] = []
    for step in steps(fix=arguments.fix, with_tests=not arguments.no_tests):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", *step.command], cwd=ROOT, check=False)
        results.append((step, done.returncode == 0, time.perf_counter() - start))
        sys.stdout.flush()
    print("\n".join(["", *(f"{'ok' if ok else 'FAILED':8}{step.name:12}{took:6.1f} s" for step, ok, took in results)]))
    failed = [step for step, ok, _ in results if not ok]
    for step in failed:
        print(f"again: {Path(sys.executable).name} -m {' '.join(step.command)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
