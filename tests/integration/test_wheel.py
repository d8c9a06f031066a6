"""A wheel holds the whole package and runs outside the source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("pagewire", "ipc", "checkpoint", "frontend", "engine_core", "gpu_executor")
FILES = ("pyproject.toml", "README.md", "LICENSE", "setup.py", "MANIFEST.in")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources: setuptools writes beside what it builds."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for file in FILES:
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, source / file)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(source))
    (path,) = target.glob("pagewire-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel alone into a folder; its dependencies come from the environment of the tests."""
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    return target


def pip(*args: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run_outside(installed: Path, cwd: Path, *args: str) -> str:
    """Run Python in another folder with the installed copy before the editable one, and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, *args], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {name for name in names if name.endswith(".py")}
    expected = {
        (path.relative_to(ROOT) if folder == "pagewire" else Path("pagewire") / path.relative_to(ROOT)).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert modules == expected
    assert "pagewire/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_command_line_runs_outside_the_tree(installed: Path, tmp_path: Path):
    assert run_outside(installed, tmp_path, "-m", "pagewire", "--version").startswith("pagewire ")
    assert "--max-model-len" in run_outside(installed, tmp_path, "-m", "pagewire", "serve", "--help")


def test_what_runs_is_the_installed_copy(installed: Path, tmp_path: Path):
    code = "import pagewire.ipc.config as a, pagewire.frontend.cli.main as b; print(a.__file__, b.__file__)"
    for path in run_outside(installed, tmp_path, "-c", code).split():
        assert Path(path).is_relative_to(installed)


def test_the_script_is_installed(installed: Path):
    assert (installed / "bin" / "pagewire").exists()
