"""Which fetched models this machine has: those in the hub's cache, and the packaged one."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from pagewire.ipc.errors import ConfigError

from ..json_reader import read_json_object
from .packaged import SMOLLM2, default_cache_directory, remove_packaged_model
from .repo_files import INDEX_FILE, group_gguf, safetensors_files
from .resumed_file import PARTIAL_SUFFIX, SHA256, digest_of

_FOLDER_PREFIX, _FOLDER_SEPARATOR = "models--", "--"


class StoredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model on this machine.

    Attributes:
        name: as commands take it: "org/repo", "org/repo:TAG" for a GGUF model of a repository, or the packaged one's.
        path: its directory, or the (first) GGUF file.
        files: all its files, by the names that commands see them under.
        num_bytes: what those take.
        source: "hub" or "packaged".
        revision: the commit that it is of; None for the packaged one.
        used_s: when it was last read, in seconds since 1970, as far as the file system keeps that.
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    num_bytes: int
    source: str
    revision: str | None = None
    used_s: float = 0.0


def hub_cache_directory() -> Path:
    """Return where the hub's library keeps models: HF_HUB_CACHE, or hub in HF_HOME."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def list_models(cache_directory: Path | None = None, packaged_directory: Path | None = None) -> list[StoredModel]:
    """Return the models that can be served without a network, in the order of their names.

    A model that was fetched at several revisions is there as often, that of its default branch first.

    Args:
        cache_directory: the hub's cache; None: where HF_HOME says.
        packaged_directory: where the packaged model is; None: the default.
    """
    found = [
        model
        for folder in _repo_folders(cache_directory or hub_cache_directory())
        for snapshot in _snapshots(folder)
        for model in _models_of(_repo_id(folder), snapshot)
    ]
    packaged = (packaged_directory or default_cache_directory()) / SMOLLM2.file_name
    if packaged.is_file() and packaged.stat().st_size == SMOLLM2.num_bytes:
        found.append(_stored(SMOLLM2.name, packaged, [packaged], "packaged", None))
    return sorted(found, key=lambda model: model.name.lower())


def partial_downloads(cache_directory: Path | None = None) -> dict[str, int]:
    """Return what broken downloads have brought, in bytes by "org/repo"; `pull` goes on with them."""
    sizes: dict[str, int] = {}
    for folder in _repo_folders(cache_directory or hub_cache_directory()):
        partial = sum(file.stat().st_size for file in (folder / "blobs").glob(f"*{PARTIAL_SUFFIX}"))
        if partial:
            sizes[_repo_id(folder)] = partial
    return sizes


def remove_partial_download(repo_id: str, cache_directory: Path | None = None) -> int:
    """Remove what broken downloads of a repository have brought and return the bytes that this gave back.

    Raises:
        OSError: a file can't be removed, or is on its way now.
    """
    cache = cache_directory or hub_cache_directory()
    (folder,) = (each for each in _repo_folders(cache) if _repo_id(each) == repo_id)
    freed = 0
    for file in (folder / "blobs").glob(f"*{PARTIAL_SUFFIX}"):
        with file.open("ab") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as who fetches it does
            except BlockingIOError as exc:
                raise OSError(errno.EBUSY, "it is being fetched", str(file)) from exc
            freed += file.stat().st_size
            file.unlink()
    if not any(_snapshots(folder)):
        shutil.rmtree(folder)
    return freed


def drop_damaged_files(model: StoredModel) -> list[str]:
    """Remove those of a hub model's weights whose bytes are not what their names say, and return their names.

    Blobs of large files are named by their digest. Those of small ones are named otherwise, and taken for right.

    Raises:
        OSError: a file can't be read or removed.
    """
    damaged = [
        file
        for file in model.files
        if SHA256.fullmatch(file.resolve().name) and digest_of(file.resolve()) != file.resolve().name
    ]
    for file in damaged:
        file.resolve().unlink()
        file.unlink()
    return [file.name for file in damaged]


def remove_model(model: StoredModel) -> int:
    """Remove a model's files and return the bytes that this gave back; what others use as well stays.

    So do files outside of the cache that somebody linked into it.

    Raises:
        OSError: a file can't be removed.
    """
    if model.source == "packaged":
        remove_packaged_model(SMOLLM2, model.path.parent)
        return model.num_bytes
    snapshot = _snapshot_of(model)
    folder = snapshot.parent.parent
    freed = 0
    for file in model.files:
        blob, is_link = file.resolve(), file.is_symlink()
        num_bytes = file.stat().st_size
        file.unlink()
        # On a system without links the file itself was all there is.
        freed += _remove_unused(blob, folder) if is_link else num_bytes
    _remove_empty(snapshot)
    if not any((folder / "snapshots").iterdir()) and not folder.is_symlink():
        shutil.rmtree(folder)
    return freed


def _repo_folders(cache: Path) -> list[Path]:
    return sorted(cache.glob(f"{_FOLDER_PREFIX}*")) if cache.is_dir() else []


def _repo_id(folder: Path) -> str:
    return folder.name.removeprefix(_FOLDER_PREFIX).replace(_FOLDER_SEPARATOR, "/", 1)


def _snapshots(folder: Path) -> Iterator[Path]:
    """Yield the snapshots of a repository, that of its default branch first."""
    snapshots, main = folder / "snapshots", folder / "refs" / "main"
    current = main.read_text(encoding="utf-8").strip() if main.is_file() else None
    if snapshots.is_dir():
        yield from sorted(snapshots.iterdir(), key=lambda path: (path.name != current, path.name))


def _models_of(repo_id: str, snapshot: Path) -> Iterator[StoredModel]:
    """Yield the whole models of a snapshot: one of safetensors, and each GGUF file (or set of files)."""
    names = sorted(path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file())
    groups = group_gguf(names)
    if "config.json" in names and _has_all_weights(snapshot, names):
        gguf = {name for group in groups for name in group.files}
        files = [snapshot / name for name in names if name not in gguf]
        yield _stored(repo_id, snapshot, files, "hub", snapshot.name)
    for group in groups:
        if len(group.files) == group.num_shards:
            files = [snapshot / name for name in group.files]
            yield _stored(f"{repo_id}:{group.tag or group.files[0]}", files[0], files, "hub", snapshot.name)


def _has_all_weights(snapshot: Path, names: list[str]) -> bool:
    if INDEX_FILE not in names:
        return bool(safetensors_files(names))
    try:
        index = read_json_object(snapshot / INDEX_FILE).get_object("weight_map")
    except ConfigError:  # a damaged file, which `pull` fetches again
        return False
    return index is not None and {str(name) for name in index.data.values()} <= set(names)


def _stored(name: str, path: Path, files: list[Path], source: str, revision: str | None) -> StoredModel:
    states = [file.stat() for file in files]
    return StoredModel(
        name=name,
        path=path,
        files=tuple(files),
        num_bytes=sum(state.st_size for state in states),
        source=source,
        revision=revision,
        used_s=max((max(state.st_atime, state.st_mtime) for state in states), default=0.0),
    )


def _snapshot_of(model: StoredModel) -> Path:
    return next(parent for parent in model.files[0].parents if parent.parent.name == "snapshots")


def _remove_unused(blob: Path, folder: Path) -> int:
    """Remove a blob that no snapshot refers to any more; return its bytes."""
    if blob.parent != (folder / "blobs").resolve():
        return 0
    if any(other.resolve() == blob for other in _links(folder / "snapshots")) or not blob.is_file():
        return 0
    num_bytes = blob.stat().st_size
    blob.unlink()
    return num_bytes


def _links(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_symlink())


def _remove_empty(folder: Path) -> None:
    for path, _folders, _files in os.walk(folder, topdown=False):
        if not any(Path(path).iterdir()):
            Path(path).rmdir()
