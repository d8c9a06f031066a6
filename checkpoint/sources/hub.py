"""Fetches a model from the Hugging Face hub, or finds it in the hub's cache, by way of huggingface_hub.

That library reads HF_TOKEN, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE itself. It is imported only here and only when a
hub id is resolved: it takes half a second. Its errors become one line that says what to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import msgspec

from pagewire.ipc.errors import ConfigError

from ..json_reader import read_json_object
from ..quantization.read_config import SEPARATE_FILES
from .guesses import guess
from .repo_files import INDEX_FILE, choose_gguf, companion_files, group_gguf, pickle_files, safetensors_files

logger = logging.getLogger(__name__)


class HubReference(msgspec.Struct, frozen=True, kw_only=True):
    """A model on the hub, as the user named it.

    Attributes:
        repo_id: "org/repo".
        tag: the GGUF model of the repository that is meant, by quantization or file name; None: safetensors, or the
            only GGUF model.
        revision: a branch, tag or commit; None: the default branch.
    """

    repo_id: str
    tag: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        suffix = f" at revision {self.revision}" if self.revision else ""
        return self.repo_id + suffix


class _Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a repository: on the hub (then `folder` is None) or in the cache."""

    files: tuple[str, ...]
    commit: str
    folder: Path | None


def fetch_from_hub(reference: HubReference, *, cache_directory: Path | None, progress: bool) -> Path:
    """Return the local directory or GGUF file of a hub model, after fetching what is needed and missing.

    Args:
        reference: which model.
        cache_directory: where the hub's cache lies; None: where HF_HOME says.
        progress: show progress bars on standard error.

    Raises:
        ConfigError: if there is no such model, revision or tag, access is refused, the hub can't be reached and the
            cache lacks it, or it has no weights that can be loaded. One line.
    """
    download = _Download(reference, cache_directory)
    with _hub_errors(reference, cache_directory), _progress_bars(progress):
        return download.run()


def fetch_config_from_hub(reference: HubReference, *, cache_directory: Path | None, progress: bool) -> Path:
    """Return a local directory with a hub model's config.json, and fetch no weights and no tokenizer.

    An older GPTQ or AWQ model says in a file beside it how it is packed; that is fetched, too.

    Args:
        reference: which model; a tag counts for nothing.
        cache_directory: where the hub's cache lies; None: where HF_HOME says.
        progress: show progress bars on standard error.

    Raises:
        ConfigError: as for `fetch_from_hub`, or the repository has no config.json.
    """
    download = _Download(reference, cache_directory)
    with _hub_errors(reference, cache_directory), _progress_bars(progress):
        return download.run_config()


class _Download:
    """One resolution: list the files, choose among them, fetch the chosen ones."""

    def __init__(self, reference: HubReference, cache_directory: Path | None) -> None:
        self._reference = reference
        self._cache_directory = cache_directory

    def run(self) -> Path:
        listing = self._list_files()
        weights = safetensors_files(listing.files)
        if self._reference.tag is None and (weights or INDEX_FILE in listing.files):
            return self._fetch_safetensors(listing, weights)
        groups = group_gguf(listing.files)
        if not groups:
            self._refuse_weights(listing, has_safetensors=bool(weights))
        group = choose_gguf(groups, self._reference.repo_id, self._reference.tag)
        return self._fetch(listing, list(group.files)) / group.files[0]

    def run_config(self) -> Path:
        listing = self._list_files()
        if "config.json" not in listing.files:
            raise ConfigError(f"{self._reference}: has no config.json that would say the model's shape")
        stating = [name for name in ("config.json", *SEPARATE_FILES) if name in listing.files]
        return self._fetch(listing, stating)

    def _list_files(self) -> _Listing:
        from huggingface_hub import HfApi, constants

        if constants.HF_HUB_OFFLINE:
            return self._list_cached("HF_HUB_OFFLINE is set")
        try:
            info = HfApi().model_info(self._reference.repo_id, revision=self._reference.revision)
        except _connection_errors() as error:
            if _is_answer(error):
                raise
            return self._list_cached(f"{constants.ENDPOINT} can't be reached ({_first_line(error)})")
        if info.sha is None:
            raise ConfigError(f"{constants.ENDPOINT} states no commit for {self._reference}: it is no model hub")
        files = tuple(sibling.rfilename for sibling in info.siblings or ())
        return _Listing(files=files, commit=info.sha, folder=None)

    def _list_cached(self, reason: str) -> _Listing:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            snapshot: str | None = snapshot_download(
                self._reference.repo_id,
                revision=self._reference.revision,
                cache_dir=self._cache_directory,
                local_files_only=True,
            )
        except LocalEntryNotFoundError as error:
            # A snapshot without the files that we never fetch is "incomplete" to the library, and whole to us.
            snapshot = getattr(error, "snapshot_path", None)
        if snapshot is None:
            question = guess(self._reference.repo_id, self._cache_directory)
            raise ConfigError(f"{self._reference}: {reason}, and the cache doesn't hold it{question}")
        folder = Path(snapshot)
        files = tuple(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        logger.warning("%s: %s; using the cached copy", self._reference, reason)
        return _Listing(files=files, commit=folder.name, folder=folder)

    def _fetch_safetensors(self, listing: _Listing, weights: list[str]) -> Path:
        if "config.json" not in listing.files:
            raise ConfigError(f"{self._reference}: has no config.json, so it is no model that can be served")
        companions = companion_files(listing.files)
        if INDEX_FILE in listing.files:
            # The index says which of the files are the model; a repository may hold other copies beside them.
            index = read_json_object(self._fetch(listing, [INDEX_FILE]) / INDEX_FILE).get_object("weight_map")
            weights = sorted({str(name) for name in index.data.values()}) if index else weights
            missing = [name for name in weights if name not in listing.files]
            if missing:
                raise ConfigError(f"{self._reference}: lacks {', '.join(missing)}, which {INDEX_FILE} names")
        return self._fetch(listing, companions + weights)

    def _fetch(self, listing: _Listing, files: list[str]) -> Path:
        if listing.folder is not None:
            return listing.folder
        from huggingface_hub import snapshot_download

        from .large_files import fetch_large_files

        is_rest_small = fetch_large_files(self._reference.repo_id, listing.commit, files, self._cache_directory)
        # The library's bars tell nothing of a few small files, and stay behind when it is done.
        with _progress_bars(not is_rest_small):
            folder: str = snapshot_download(
                self._reference.repo_id,
                revision=self._reference.revision,
                cache_dir=self._cache_directory,
                allow_patterns=[_literal_pattern(name) for name in files],
            )
        return Path(folder)

    def _refuse_weights(self, listing: _Listing, *, has_safetensors: bool) -> NoReturn:
        if has_safetensors:
            raise ConfigError(
                f"{self._reference}: holds no GGUF file, of which :{self._reference.tag} would be one; leave that out "
                "for its safetensors"
            )
        pickles = pickle_files(listing.files)
        if pickles:
            raise ConfigError(
                f"{self._reference}: its weights are {', '.join(pickles[:3])}, pickled files, which are not loaded "
                "because they can run code; choose a repository or revision with safetensors or GGUF files"
            )
        raise ConfigError(f"{self._reference}: holds neither safetensors nor GGUF files")


@contextmanager
def _hub_errors(reference: HubReference, cache_directory: Path | None) -> Iterator[None]:
    """Turn the library's exceptions into `ConfigError`s of one line."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    page = f"{constants.ENDPOINT}/{reference.repo_id}"
    try:
        yield
    except GatedRepoError as error:
        raise ConfigError(
            f"{reference.repo_id} is gated: accept its terms at {page} and set HF_TOKEN to a token of that account"
        ) from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"{reference.repo_id}: there is no such local path, and at {page} no model, or a private one: check the "
            f"name, or set HF_TOKEN to a token that may read it{guess(reference.repo_id, cache_directory)}"
        ) from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"{reference.repo_id}: has no revision {reference.revision!r}; see {page}") from error
    except HFValidationError as error:
        raise ConfigError(f"{reference.repo_id!r} is no hub id: {_first_line(error)}") from error
    except _connection_errors() as error:
        if _status(error) in (401, 403):
            raise ConfigError(
                f"{reference.repo_id}: access is refused: ask for it at {page} and set HF_TOKEN to a token that may "
                "read it"
            ) from error
        raise ConfigError(f"{reference} can't be fetched from {constants.ENDPOINT}: {_first_line(error)}") from error


def _connection_errors() -> tuple[type[Exception], ...]:
    """Return what a failing request raises: OSError, and the HTTP client's root where that is another class.

    The library has changed its client before, so the root is taken from the bases of its own error class.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, *(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)))


def _status(error: Exception) -> int | None:
    status: int | None = getattr(getattr(error, "response", None), "status_code", None)
    return status


def _is_answer(error: Exception) -> bool:
    """Tell whether the hub answered about the model, as opposed to being out of reach or out of order."""
    status = _status(error)
    return status is not None and status < 500


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _literal_pattern(name: str) -> str:
    """Escape what a file name pattern would read as a wildcard."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


@contextmanager
def _progress_bars(enabled: bool) -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    restore: Callable[[], None] | None = None
    if not enabled and not are_progress_bars_disabled():
        disable_progress_bars()
        restore = enable_progress_bars
    try:
        yield
    finally:
        if restore is not None:
            restore()
