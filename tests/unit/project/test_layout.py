"""The project keeps its shape: who may import whom, packaging that matches the folders, files of one concept."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.file_sizes import oversized

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("ipc", "checkpoint", "frontend", "engine_core", "gpu_executor")

# package -> the packages that it may import, besides itself. `pagewire` is the folder of the public names.
ARROWS = {
    "ipc": set(),
    "checkpoint": {"ipc"},
    "frontend": {"checkpoint", "ipc"},
    "engine_core": {"checkpoint", "ipc"},
    "gpu_executor": {"checkpoint", "ipc"},
    "pagewire": {"frontend", "ipc"},
}
# module -> the only package that may import it: it is heavy, or belongs to one actor's task.
CONFINED = {
    "ray": "engine_core",
    "torch": "gpu_executor",
    "triton": "gpu_executor",
    "aiohttp": "frontend",
    "click": "frontend",
}
# What a distribution is imported as, where the name differs.
IMPORTED_AS = {"pyzmq": "zmq", "pyyaml": "yaml", "protobuf": "google", "opentelemetry-sdk": "opentelemetry"}


def source_files() -> list[Path]:
    return [path for package in ARROWS for path in sorted((ROOT / package).rglob("*.py"))]


def all_files() -> list[Path]:
    return [*source_files(), *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "tools").rglob("*.py"))]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (level, module) of each import, lazy ones and ones for types only included.

    `from x import y` counts as `x.y` too, since y may be a module.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = f"{node.module}." if node.module else ""
            yield from ((node.level, prefix + alias.name) for alias in node.names)


def where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def faults_of_import(path: Path, level: int, module: str) -> Iterator[str]:
    package, depth = package_of(path), len(path.relative_to(ROOT).parts) - 1
    top, _, rest = module.partition(".")
    if level:
        if level > depth:
            yield f"{where(path)}: {'.' * level}{module} leaves the package; write pagewire.<package>"
        return
    if top in PACKAGES:
        yield f"{where(path)}: import {module} works only in the project's folder; write pagewire.{module}"
    if top in CONFINED and package != CONFINED[top]:
        yield f"{where(path)}: {top} may be imported under {CONFINED[top]}/ only"
    if top in ("tests", "tools"):
        yield f"{where(path)}: {module} is not installed with the package"
    if top == "pagewire":
        other = rest.partition(".")[0]
        if other == package:
            yield f"{where(path)}: {module} is the own package; import it relative"
        elif other in PACKAGES and other not in ARROWS[package]:
            yield f"{where(path)}: {package} must not import {other}"


def test_imports_follow_the_arrows():
    faults = [
        fault for path in source_files() for level, module in imports(path)
        for fault in faults_of_import(path, level, module)
    ]  # fmt: skip
    assert faults == []


@pytest.mark.parametrize(
    ("file", "level", "module", "part"),
    [
        ("frontend/x.py", 0, "pagewire.engine_core.loop", "must not import"),
        ("ipc/x.py", 0, "pagewire.checkpoint.model_config", "must not import"),
        ("engine_core/kv/x.py", 0, "torch.nn", "gpu_executor/ only"),
        ("gpu_executor/x.py", 0, "aiohttp", "frontend/ only"),
        ("ipc/x.py", 0, "ipc.config", "only in the project's folder"),
        ("ipc/x.py", 0, "pagewire.ipc.config", "own package"),
        ("engine_core/kv/x.py", 3, "ipc.config", "leaves the package"),
        ("ipc/x.py", 2, "checkpoint", "leaves the package"),
        ("frontend/x.py", 0, "tests.support.x", "not installed"),
    ],
)
def test_a_wrong_import_would_be_noticed(file: str, level: int, module: str, part: str):
    assert any(part in fault for fault in faults_of_import(ROOT / file, level, module))


@pytest.mark.parametrize(
    ("file", "level", "module"),
    [
        ("engine_core/kv/x.py", 2, "request.Request"),
        ("frontend/x.py", 0, "pagewire.checkpoint.resolve"),
        ("gpu_executor/x.py", 0, "torch"),
        ("frontend/x.py", 0, "pagewire.version.__version__"),
    ],
)
def test_a_right_import_passes(file: str, level: int, module: str):
    assert list(faults_of_import(ROOT / file, level, module)) == []


def test_nobody_imports_a_folder_by_its_bare_name():
    bare = [
        f"{where(path)}: {module}" for path in all_files() for level, module in imports(path)
        if level == 0 and module.partition(".")[0] in PACKAGES
    ]  # fmt: skip
    assert bare == []


def pyproject() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_import_is_declared_as_a_dependency():
    project = pyproject()["project"]
    assert isinstance(project, dict)
    optional = [
        line for extra in ("otel", "plot", "ray", "slow-tokenizers") for line in project["optional-dependencies"][extra]
    ]
    names = {re.split(r"[><=;\[ ]", line)[0].lower() for line in [*project["dependencies"], *optional]}
    declared = {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names} | {"triton"}
    undeclared = {
        f"{where(path)}: {module}" for path in source_files() for level, module in imports(path)
        if level == 0 and (top := module.partition(".")[0]) not in declared
        and top not in sys.stdlib_module_names and top != "pagewire"
    }  # fmt: skip
    assert undeclared == set()


def test_the_package_list_equals_the_folders():
    tool = pyproject()["tool"]
    assert isinstance(tool, dict)
    folders = {
        "pagewire" if package == "pagewire" and not parts else ".".join(["pagewire", package, *parts])
        for package in ARROWS
        for path in (ROOT / package).rglob("__init__.py")
        for parts in [path.relative_to(ROOT / package).parts[:-1]]
    }
    assert sorted(tool["setuptools"]["packages"]) == sorted(folders)
    assert set(tool["setuptools"]["package-dir"].values()) == set(ARROWS)


def test_every_folder_with_modules_is_a_package():
    folders = {path.parent for path in source_files()}
    assert [where(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_the_type_checkers_tree_mirrors_the_packages():
    typing_tree = ROOT / ".typing" / "pagewire"
    expected = {path.name: f"../../pagewire/{path.name}" for path in (ROOT / "pagewire").iterdir() if path.is_file()}
    expected |= {package: f"../../{package}" for package in PACKAGES}
    links = {path.name: str(path.readlink()) for path in typing_tree.iterdir() if path.is_symlink()}
    assert links == expected
    assert [path.name for path in typing_tree.iterdir() if not path.exists()] == []


def test_an_init_file_is_one_docstring():
    wordy = [
        where(path)
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
        if ast.get_docstring(tree := ast.parse(path.read_text(encoding="utf-8"))) is None or len(tree.body) != 1
    ]
    assert wordy == []


def test_every_module_has_a_docstring_and_lazy_annotations():
    faults = []
    for path in source_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if ast.get_docstring(tree) is None:
            faults.append(f"{where(path)}: no docstring")
        # An __init__ is a docstring, a __main__ a call: what has no signatures needs no annotations.
        has_functions = any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree))
        first = tree.body[1] if len(tree.body) > 1 else None
        is_lazy = isinstance(first, ast.ImportFrom) and first.module == "__future__"
        if has_functions and not is_lazy:
            faults.append(f"{where(path)}: `from __future__ import annotations` must come first")
    assert faults == []


def test_files_and_functions_keep_one_concept():
    assert oversized() == []


def test_a_file_that_grew_would_be_noticed(tmp_path: Path):
    (tmp_path / "ipc").mkdir()
    (tmp_path / "ipc" / "long.py").write_text("x = 1\n" * 400)
    (tmp_path / "ipc" / "deep.py").write_text("def f():\n" + "    x = 1\n" * 70)
    assert [line.partition(";")[0] for line in oversized(tmp_path, {"ipc/gone.py": "it was long"})] == [
        "ipc/deep.py:f: 71 lines",
        "ipc/long.py: 400 lines",
        "ipc/gone.py: listed as large in tools/file_sizes.py, but it is not",
    ]
