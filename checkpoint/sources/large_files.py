"""Fetches a hub model's weights so that a broken download goes on where it broke, and checks their digests.

The library begins a file anew with each try, and takes what came for what was meant. So the large files are fetched
here, into the library's own cache and under its names: it then finds them there. Small files are left to it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from .resumed_file import SHA256, RemoteFile, ResumedFile

_LARGE = frozenset({".safetensors", ".gguf"})
_AT_ONCE = 4  # files: a model has a few large ones, and one connection rarely fills a line


def fetch_large_files(repo_id: str, commit: str, names: Iterable[str], cache_directory: Path | None) -> bool:
    """Fetch those files of weights that the cache lacks; each appears under its name when it is whole and right.

    Returns whether all of them are there now, so that nothing large is left to the library.

    Args:
        repo_id: "org/repo".
        commit: whose files.
        names: files of the repository; those that are no weights are passed over.
        cache_directory: where the hub's cache lies; None: where HF_HOME says.

    Raises:
        OSError: the hub can't be reached; and whatever the library raises.
        MachineError: a file can't be written, or came with another digest.
    """
    from huggingface_hub import try_to_load_from_cache

    missing = [
        name
        for name in names
        if PurePosixPath(name).suffix in _LARGE
        and not isinstance(try_to_load_from_cache(repo_id, name, cache_directory, revision=commit), str)
    ]
    stop = threading.Event()
    files = [ResumedFile(partial(_look_up, repo_id, commit, name, cache_directory), stop) for name in missing]
    run_at_once([file.fetch for file in files], stop)
    return all(file.is_there for file in files)


def run_at_once(jobs: Sequence[Callable[[], None]], stop: threading.Event) -> None:
    """Run jobs, four at a time. What ends the wait for them, Ctrl-C or the first one's fault, stops the others.

    Their threads are daemons: neither Ctrl-C nor the program's end waits for a connection that brings nothing.
    """
    waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)

    def work() -> None:
        while not stop.is_set():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                job()
                ends.put(None)
            except BaseException as exc:  # raised again by whoever waits
                ends.put(exc)

    try:
        for number in range(min(_AT_ONCE, len(jobs))):
            threading.Thread(target=work, name=f"fetch-{number}", daemon=True).start()
        for _ in jobs:
            fault = ends.get()
            if fault is not None:
                raise fault
    finally:
        stop.set()


def _look_up(repo_id: str, commit: str, name: str, cache_directory: Path | None) -> RemoteFile | None:
    """Return what the hub says of a file; None if it states no digest, and the library shall fetch it."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # public, but not exported

    url = hf_hub_url(repo_id, name, revision=commit)
    facts = get_hf_file_metadata(url)
    if facts.etag is None or facts.size is None or SHA256.fullmatch(facts.etag) is None:
        return None
    # The credential is the hub's: where the bytes lie elsewhere, the address itself holds the permission.
    is_hub = urlsplit(facts.location)[:2] == urlsplit(constants.ENDPOINT)[:2]
    headers: dict[str, str] = build_hf_headers(token=None if is_hub else False)
    folder = Path(cache_directory or constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo_id, repo_type="model")
    return RemoteFile(
        name=name,
        url=facts.location,
        headers=headers,
        num_bytes=facts.size,
        sha256=facts.etag,
        path=folder / "blobs" / facts.etag,
    )
