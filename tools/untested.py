"""Which source files have no test file that mirrors them: `python -m tools.untested`.

A report, not a gate: some files are tested through the one door that leads to them, and say nothing alone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.file_sizes import ROOT

PACKAGES = ("ipc", "checkpoint", "frontend", "engine_core", "gpu_executor")


def untested(root: Path = ROOT) -> Iterator[Path]:
    """Yield each source file with functions in it whose tests/unit/<package>/test_<file>.py is not there."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            relative = path.relative_to(root)
            mirror = root / "tests" / "unit" / relative.parent / f"test_{path.name}"
            if not mirror.exists() and _has_functions(path):
                yield relative


def _has_functions(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree))


def main() -> int:
    """Print the files."""
    for path in untested():
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
