"""Fetches a hub model's weights so that a broken download goes on where it broke, and checks their digests.

The library begins a file anew with each try, and takes what came for what was meant. So the large files are fetched
here, into the library's own cache and under its names: it then finds them there. Small files are left to it.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import msgspec

from pagewire.ipc.errors import MachineError

_LARGE = frozenset({".safetensors", ".gguf"})
SHA256 = re.compile(r"[0-9a-f]{64}")  # the hub's ETag of a large file is its digest
_CHUNK_BYTES = 1 << 20
_AT_ONCE = 4  # files: a model has a few large ones, and one connection rarely fills a line
_TRIES = 5  # without a byte of progress
_TIMEOUT_S = 60.0
PARTIAL_SUFFIX = ".partial"


class _Untrusted(Exception):
    """The certificate is not to be checked with the system's authorities; the library brings some of its own."""


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """A file to fetch.

    Attributes:
        name: in the repository.
        url: where its bytes are, redirections followed.
        headers: to send there.
        num_bytes: its size.
        sha256: its digest.
        path: where it belongs in the cache.
    """

    name: str
    url: str
    headers: dict[str, str]
    num_bytes: int
    sha256: str
    path: Path


def fetch_large_files(repo_id: str, commit: str, names: Iterable[str], cache_directory: Path | None) -> None:
    """Fetch those files of weights that the cache lacks; each appears under its name when it is whole and right.

    Args:
        repo_id: "org/repo".
        commit: whose files.
        names: files of the repository; those that are no weights are passed over.
        cache_directory: where the hub's cache lies; None: where HF_HOME says.

    Raises:
        OSError: the hub can't be reached, or the file not be written; and whatever the library raises.
        MachineError: what came has another digest.
    """
    from huggingface_hub import try_to_load_from_cache

    missing = [
        name
        for name in names
        if PurePosixPath(name).suffix in _LARGE
        and not isinstance(try_to_load_from_cache(repo_id, name, cache_directory, revision=commit), str)
    ]
    if not missing:
        return
    with ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="fetch") as threads:
        found = threads.map(lambda name: _look_up(repo_id, commit, name, cache_directory), missing)
        list(threads.map(_fetch, [file for file in found if file is not None]))


def _look_up(repo_id: str, commit: str, name: str, cache_directory: Path | None) -> _File | None:
    """Return what the hub says of a file; None if it states no digest, and the library shall fetch it."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # public, but not exported

    url = hf_hub_url(repo_id, name, revision=commit)
    facts = get_hf_file_metadata(url)
    if facts.etag is None or facts.size is None or SHA256.fullmatch(facts.etag) is None:
        return None
    # The credential is the hub's: where the bytes lie elsewhere, the address itself holds the permission.
    is_hub = urlsplit(facts.location).netloc == urlsplit(constants.ENDPOINT).netloc
    headers: dict[str, str] = build_hf_headers() if is_hub else {}
    folder = Path(cache_directory or constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo_id, repo_type="model")
    return _File(
        name=name,
        url=facts.location,
        headers=headers,
        num_bytes=facts.size,
        sha256=facts.etag,
        path=folder / "blobs" / facts.etag,
    )


def _fetch(file: _File) -> None:
    file.path.parent.mkdir(parents=True, exist_ok=True)
    partial = file.path.with_name(file.path.name + PARTIAL_SUFFIX)
    with partial.open("ab") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)  # another process may be fetching it
        if file.path.exists():
            partial.unlink(missing_ok=True)
            return
        try:
            _fetch_rest(file, opened)
        except _Untrusted:
            partial.unlink()
            return  # nothing came: the library fetches it
        if digest_of(partial) != file.sha256:
            partial.unlink()
            raise MachineError(f"{file.name} came with another digest than {file.sha256}, and was dropped; fetch again")
        partial.replace(file.path)


def _fetch_rest(file: _File, opened: BinaryIO) -> None:
    from huggingface_hub.utils.tqdm import tqdm

    if opened.tell() > file.num_bytes:
        opened.truncate(0)
    with ExitStack() as stack:
        make_bar: Any = tqdm  # Any: the library's bar has no types
        bar = stack.enter_context(
            make_bar(total=file.num_bytes, initial=opened.tell(), unit="B", unit_scale=True, desc=file.name)
        )
        failures = 0
        while (begin := opened.tell()) < file.num_bytes:
            try:
                _copy(file, opened, bar)
            except (OSError, http.client.HTTPException) as exc:
                failures = 1 if opened.tell() > begin else failures + 1
                if isinstance(getattr(exc, "reason", None), ssl.SSLCertVerificationError):
                    raise _Untrusted from exc
                is_answer = False
                if isinstance(exc, urllib.error.HTTPError):
                    exc.close()  # it is also the answer, with its connection
                    is_answer = exc.code < 500
                if is_answer or failures == _TRIES:
                    raise exc if isinstance(exc, OSError) else OSError(f"{file.name}: {exc!r}") from exc


def _copy(file: _File, opened: BinaryIO, bar: Any) -> None:  # Any: as above
    """Append what is missing, as far as one connection brings it."""
    headers = {**file.headers, "Range": f"bytes={opened.tell()}-"}
    request = urllib.request.Request(file.url, headers=headers)  # noqa: S310 -- the hub's own address
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310 -- as above
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:  # it knows no ranges, and sends all
            bar.update(-opened.tell())
            opened.truncate(0)
        while chunk := response.read(_CHUNK_BYTES):
            opened.write(chunk)
            bar.update(len(chunk))
    opened.flush()


def digest_of(path: Path) -> str:
    """Return a file's sha256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
