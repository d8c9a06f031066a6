"""Which files of a model repository or directory are needed: pure functions of the list of file names.

Weights come as safetensors, or as one of often many GGUF files, told apart by the quantization in their names. Pickled
weights (*.bin, *.pth) are never fetched or loaded: unpickling runs code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

import msgspec

from pagewire.ipc.errors import ConfigError

INDEX_FILE = "model.safetensors.index.json"
_TOKENIZER_FILES = frozenset({"merges.txt", "vocab.txt"})
_TOKENIZER_SUFFIXES = frozenset({".model", ".tiktoken", ".jinja"})
_PICKLE_SUFFIXES = frozenset({".bin", ".pth", ".pt"})
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
# The quantization at the end of a file's stem: Q4_K_M, IQ2_XXS, UD-Q4_K_XL, BF16, MXFP4_MOE ...
_TAG = re.compile(r"(?:^|[-._])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|F16|FP16|F32|FP32|MXFP4\w*))$", re.IGNORECASE)


class GGUFGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The file or files of one GGUF model.

    Attributes:
        stem: its path without shard number and suffix, unique in a repository.
        tag: the quantization that its name states, None if it states none.
        files: all its files that are there, the first shard first.
        num_shards: how many there should be.
    """

    stem: str
    tag: str | None
    files: tuple[str, ...]
    num_shards: int


def companion_files(files: Iterable[str]) -> list[str]:
    """Return the configuration and tokenizer files beside safetensors weights."""
    return sorted(
        name
        for name in files
        if "/" not in name
        and (name.endswith(".json") or name in _TOKENIZER_FILES or PurePosixPath(name).suffix in _TOKENIZER_SUFFIXES)
    )


def safetensors_files(files: Iterable[str]) -> list[str]:
    """Return the safetensors weights of a repository without index; consolidated* is another vendor's copy of them."""
    names = sorted(name for name in files if name.endswith(".safetensors") and "/" not in name)
    if "model.safetensors" in names:
        return ["model.safetensors"]
    return [name for name in names if not name.startswith("consolidated")]


def pickle_files(files: Iterable[str]) -> list[str]:
    """Return the weights in pickle formats, for the message that refuses them."""
    return sorted(name for name in files if PurePosixPath(name).suffix in _PICKLE_SUFFIXES and "/" not in name)


def group_gguf(files: Iterable[str]) -> list[GGUFGroup]:
    """Group GGUF files to models: split files belong together; projectors and importance matrices are left out."""
    groups: dict[str, list[str]] = {}
    num_shards: dict[str, int] = {}
    for name in sorted(files):
        path = PurePosixPath(name)
        if path.suffix.lower() != ".gguf" or path.name.lower().startswith("mmproj") or "imatrix" in path.name.lower():
            continue
        stem = str(path.with_suffix(""))
        shard = _SHARD.search(stem)
        stem = stem[: shard.start()] if shard else stem
        groups.setdefault(stem, []).append(name)
        num_shards[stem] = int(shard[2]) if shard else 1
    return [
        GGUFGroup(stem=stem, tag=_tag(stem), files=tuple(names), num_shards=num_shards[stem])
        for stem, names in groups.items()
    ]


def choose_gguf(groups: list[GGUFGroup], where: str, wanted: str | None) -> GGUFGroup:
    """Return the one GGUF model that is meant.

    Args:
        groups: what there is.
        where: the repository or directory, for messages.
        wanted: a quantization tag in any case, or a file name; None if there should be only one.

    Raises:
        ConfigError: if nothing or more than one fits, or shards are missing; the message lists what there is.
    """
    if not groups:
        raise ConfigError(f"{where}: holds no GGUF file")
    matches = groups if wanted is None else _matching(groups, wanted)
    if len(matches) != 1:
        raise ConfigError(_choice_message(groups, matches, where, wanted))
    group = matches[0]
    if len(group.files) != group.num_shards:
        raise ConfigError(
            f"{where}: the split model {group.stem} has {len(group.files)} of {group.num_shards} files: "
            f"{', '.join(group.files)}"
        )
    return group


def _matching(groups: list[GGUFGroup], wanted: str) -> list[GGUFGroup]:
    text = wanted.lower()
    by_file = [group for group in groups if text in (name.lower() for name in group.files)]
    if by_file:
        return by_file
    by_tag = [group for group in groups if group.tag is not None and group.tag.lower() == text]
    if by_tag:
        return by_tag
    # A tag that the pattern doesn't know, at the end of the name behind a separator.
    return [group for group in groups if re.search(rf"(?:^|[-._/]){re.escape(text)}$", group.stem.lower())]


def _choice_message(groups: list[GGUFGroup], matches: list[GGUFGroup], where: str, wanted: str | None) -> str:
    if len(matches) > 1 and wanted is not None:
        return f"{where}: {wanted!r} fits {', '.join(group.files[0] for group in matches)}; name the file instead"
    available = ", ".join(group.tag or group.files[0] for group in groups)
    if wanted is None:
        return f"{where}: holds {len(groups)} GGUF models; choose one with {where}:TAG, TAG being one of {available}"
    return f"{where}: has no GGUF model {wanted!r}; available are {available}"


def _tag(stem: str) -> str | None:
    match = _TAG.search(PurePosixPath(stem).name)
    return match[1] if match else None
