"""Listing, fetching and removing models, in words."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.table import Table

from pagewire.checkpoint.resolve import resolve_model
from pagewire.checkpoint.sources.inventory import (
    StoredModel,
    drop_damaged_files,
    list_models,
    partial_downloads,
    remove_model,
    remove_partial_download,
)
from pagewire.ipc.errors import ConfigError, MachineError

from ..plain_console import plain_console
from ..safe_text import safe_text
from .config import ListConfig, RemoveConfig, StoreConfig

Say = Callable[[str], None]

_WIDTH_OF_PIPES = 240


def show_list(config: ListConfig, say: Say) -> int:
    """Print the models of this machine, where they are and what they take; return the exit code."""
    cache = _directory(config.download_dir)
    models, broken = list_models(cache), partial_downloads(cache)
    if config.json:
        say(msgspec.json.format(msgspec.json.encode([_facts(model) for model in models])).decode())
        return 0
    if not models and not broken:
        say("There are no models yet; `pagewire models pull MODEL` fetches one.")
        return 0
    table = Table("model", "size", "last used", "where", box=None, pad_edge=False)
    for model in models:
        used = datetime.fromtimestamp(model.used_s, UTC).strftime("%Y-%m-%d")
        table.add_row(safe_text(model.name), readable_size(model.num_bytes), used, safe_text(str(model.path)))
    for repo_id, num_bytes in broken.items():
        table.add_row(safe_text(repo_id), readable_size(num_bytes), "", "not whole yet: pull it again, and it goes on")
    console = plain_console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_PIPES
    console.print(table)
    # Revisions share what they have in common.
    files = {file.resolve() for model in models for file in model.files}
    total = sum(file.stat().st_size for file in files) + sum(broken.values())
    console.print(f"{len(models)} {'model' if len(models) == 1 else 'models'}, {readable_size(total)}", style="dim")
    return 0


def pull(name: str, config: StoreConfig, say: Say) -> int:
    """Fetch a model, or what of it is missing, and check its weights' digests; return the exit code.

    Raises:
        StartError: there is no such model, or it can't be fetched or stored.
    """
    if Path(name).expanduser().exists():
        raise ConfigError(f"{name} is a local path; there is nothing to fetch.")
    cache = _directory(config.download_dir)
    resolved = resolve_model(name, revision=config.revision, download_dir=cache)
    stored = _at(resolved.path, cache)
    damaged = drop_damaged_files(stored) if stored is not None and stored.source == "hub" else []
    if damaged:
        say(f"Damaged, and fetched again: {', '.join(damaged)}.")
        resolved = resolve_model(name, revision=config.revision, download_dir=cache)
        stored = _at(resolved.path, cache)
    size = "" if stored is None else f", {readable_size(stored.num_bytes)}"
    say(f"{resolved.name}{size}, is at {resolved.path}.")
    say(f"`pagewire serve {resolved.name}` serves it, `pagewire chat {resolved.name}` talks to it.")
    return 0


def remove(names: tuple[str, ...], config: RemoveConfig, say: Say, ask: Callable[[str], bool]) -> int:
    """Remove models after asking; return the exit code.

    Args:
        names: of models on this machine; of a repository of GGUF files, all of them or one; of broken downloads.
        config: whether to ask.
        say: prints a line.
        ask: puts a question to the user.

    Raises:
        ConfigError: there is no such model, or nobody can be asked.
        MachineError: a file can't be removed.
    """
    removable = _removable(_directory(config.download_dir))
    chosen = [each for name in names for each in _named(name, removable)]
    if not config.yes and not sys.stdin.isatty():
        raise ConfigError("nobody can be asked here; give --yes to remove the models all the same.")
    for each in chosen:
        if not config.yes and not ask(f"Remove {each.name}, {readable_size(each.num_bytes)}, {each.where}?"):
            say(f"{each.name} stays.")
            continue
        try:
            freed = each.remove()
        except OSError as exc:
            raise MachineError(f"{each.name} can't be removed: {exc.filename}: {exc.strerror}.") from exc
        say(f"Removed {each.name}; {readable_size(freed)} are free again.")
    return 0


def readable_size(num_bytes: float) -> str:
    """Return a size for people, in powers of 1024."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} TiB"


class _Removable(NamedTuple):
    name: str
    num_bytes: int
    where: str
    remove: Callable[[], int]


def _removable(cache: Path | None) -> list[_Removable]:
    models = [
        _Removable(model.name, model.num_bytes, f"at {model.path}", partial(remove_model, model))
        for model in list_models(cache)
    ]
    broken = [
        _Removable(repo_id, num_bytes, "of a download that broke", partial(remove_partial_download, repo_id, cache))
        for repo_id, num_bytes in partial_downloads(cache).items()
    ]
    return [*broken, *models]  # the last model of a repository takes its folder along


def _named(name: str, removable: list[_Removable]) -> list[_Removable]:
    lowered = name.lower()
    found = [each for each in removable if lowered in (each.name.lower(), each.name.lower().partition(":")[0])]
    if found:
        return found
    known = [each.name for each in removable]
    matches = get_close_matches(name, known, n=1, cutoff=0.5)
    contained = [each for each in known if lowered in each.lower()] or matches
    guess = f"; did you mean {contained[0]}?" if contained else f"; there are {', '.join(known) or 'none'}."
    raise ConfigError(f"no model {name} was fetched{guess}")


def _at(path: Path, cache: Path | None) -> StoredModel | None:
    return next((model for model in list_models(cache) if model.path == path), None)


def _facts(model: StoredModel) -> dict[str, object]:
    return {
        "name": model.name,
        "path": str(model.path),
        "num_bytes": model.num_bytes,
        "source": model.source,
        "revision": model.revision,
        "last_used": datetime.fromtimestamp(model.used_s, UTC).isoformat(),
    }


def _directory(text: str | None) -> Path | None:
    return None if text is None else Path(text).expanduser()
