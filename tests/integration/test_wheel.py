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
    """The wheel with the portable kernels: those for other instructions are built the same way, and take longer."""
    return build_wheel(tmp_path_factory, PAGEWIRE_INSTRUCTION_SETS="portable")


def build_wheel(tmp_path_factory: pytest.TempPathFactory, **environment: str) -> Path:
    """Build the wheel from a copy of the sources: setuptools writes beside what it builds."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for file in FILES:
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, source / file)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(source), **environment)
    (path,) = target.glob("pagewire-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel alone into a folder; its dependencies come from the environment of the tests."""
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    return target


def pip(*args: str, **environment: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *args]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
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
    page = {f"pagewire/frontend/web/static/{path.name}" for path in (ROOT / "frontend/web/static").iterdir()}
    assert page <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_holds_the_kernels_compiled_and_serves_any_python(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert "pagewire/gpu_executor/kernels/cpu/_native.so" in names
    assert not [name for name in names if "csrc" in name]
    assert "-py3-none-" in wheel.name


def test_the_installed_kernels_run(installed: Path, tmp_path: Path):
    code = (
        "import torch; from pagewire.gpu_executor.kernels.select import select_ops;"
        "ops = select_ops('cpu', num_threads=2);"
        "print(ops.describe(), ops.silu_and_mul(torch.zeros(1, 4)).tolist())"
    )
    assert run_outside(installed, tmp_path, "-c", code) == "cpu (portable, 2 threads) [[0.0, 0.0]]\n"


def test_without_a_compiler_the_package_installs_and_runs_on_the_reference(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
):
    without_kernels = build_wheel(tmp_path_factory, CXX="/no/such/compiler")
    pip("install", "--no-deps", "--no-index", "--target", str(tmp_path / "installed"), str(without_kernels))
    code = (
        "import logging; from pagewire.gpu_executor.kernels.select import select_ops;"
        "logging.basicConfig(format='%(message)s'); print(select_ops('auto').name)"
    )
    assert run_outside(tmp_path / "installed", tmp_path, "-c", code) == "reference\n"


def test_the_command_line_runs_outside_the_tree(installed: Path, tmp_path: Path):
    assert run_outside(installed, tmp_path, "-m", "pagewire", "--version").startswith("pagewire ")
    assert "--max-model-len" in run_outside(installed, tmp_path, "-m", "pagewire", "serve", "--help")


def test_what_runs_is_the_installed_copy(installed: Path, tmp_path: Path):
    code = "import pagewire.ipc.config as a, pagewire.frontend.cli.main as b; print(a.__file__, b.__file__)"
    for path in run_outside(installed, tmp_path, "-c", code).split():
        assert Path(path).is_relative_to(installed)


def test_the_script_is_installed(installed: Path):
    assert (installed / "bin" / "pagewire").exists()
