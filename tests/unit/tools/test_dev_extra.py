"""Tools for developers say in one line what they lack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.dev_extra import dev_extra
from tools.file_sizes import ROOT


def run_without_extra(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a tool as `python -m` does, where the extra's packages can't be found."""
    code = (
        "import runpy, sys; del sys.argv[0]\n"
        "for name in ('gguf', 'hypothesis', 'transformers'): sys.modules[name] = None\n"
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, tool, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=120
    )


def test_missing_package_is_named_with_the_remedy() -> None:
    with pytest.raises(SystemExit, match=r"needs no_such_package, which is not installed: .*\[dev\]"), dev_extra():
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401


def test_other_faults_of_a_module_are_not_hidden() -> None:
    with pytest.raises(ImportError, match="cannot import name"), dev_extra():
        from tools.file_sizes import no_such_name  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize("tool", ["fuzz_http", "requantize"])
def test_tool_ends_with_one_line(tool: str) -> None:
    ended = run_without_extra(f"tools.{tool}")
    assert ended.returncode == 1
    [line] = ended.stderr.splitlines()
    assert line.startswith("this tool needs ")


@pytest.mark.slow  # two imports of torch
def test_tiny_directory_is_written_without_the_extra_and_a_gguf_file_is_not(tmp_path: Path) -> None:
    command = ("tools.make_tiny_model", "llama")
    directory = run_without_extra(*command, str(tmp_path / "tiny"))
    assert directory.returncode == 0, directory.stderr
    assert (tmp_path / "tiny" / "config.json").is_file()
    ended = run_without_extra(*command, str(tmp_path / "tiny.gguf"), "--gguf", "Q8_0")
    assert ended.returncode == 1
    assert ended.stderr.startswith("this tool needs gguf, which is not installed")
