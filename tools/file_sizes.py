"""Which files and functions have outgrown one concept: `python -m tools.file_sizes`; the layout test runs it too.

The limits are those of CONTRIBUTING: a file of over 350 lines, or a function of over 60, is split, or listed here
with the reason why it reads better whole.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("pagewire", "ipc", "checkpoint", "frontend", "engine_core", "gpu_executor", "tools")
MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60

# "path" or "path:function" -> why it stays whole.
LARGE_ON_PURPOSE: dict[str, str] = {
    "gpu_executor/kernels/triton/attention_kernel.py:attention_kernel": "38 arguments, one a line in the signature, in"
    " the docstring and, most of them, in two calls",
    "gpu_executor/kernels/triton/attention_tile.py:attend_span": "22 arguments, one a line, three times",
    "gpu_executor/kernels/triton/attention_tile.py:_attend_keys": "24 arguments; the loop that follows is one softmax",
    "gpu_executor/kernels/triton/quantized_matmul.py:quantized_steps": "20 arguments, one a line; the loop that"
    " follows is one product",
    "gpu_executor/kernels/triton/sampling/nucleus.py:redraw_kernel": "its arguments and those of its calls, one a line",
}


def oversized(root: Path = ROOT, on_purpose: Mapping[str, str] = LARGE_ON_PURPOSE) -> list[str]:
    """Return one line for each file or function over its limit, and for each listed one that is not (any more)."""
    large = {name: lines for path in _sources(root) for name, lines in _large_parts(path, root)}
    unlisted = [
        f"{name}: {lines} lines; split it, or list it with a reason in tools/file_sizes.py"
        for name, lines in large.items()
        if name not in on_purpose
    ]
    stale = [
        f"{name}: listed as large in tools/file_sizes.py, but it is not" for name in on_purpose if name not in large
    ]
    return unlisted + stale


def _sources(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for pattern in ("*.py", "*.cpp", "*.h", "*.inl"):
            yield from sorted((root / folder).rglob(pattern))


def _large_parts(path: Path, root: Path) -> Iterator[tuple[str, int]]:
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(root).as_posix()
    if (lines := text.count("\n")) > MAX_FILE_LINES:
        yield name, lines
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{name}:{node.name}", lines


def main() -> int:
    """Print what is too large and return the exit code."""
    lines = oversized()
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
