"""Tiny checkpoints for tests, each made once a test session and shared by all tests that ask for the same."""

from __future__ import annotations

import atexit
import functools
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tools.tiny_model.gguf_writer import write_gguf
from tools.tiny_model.hugging_face import write_hugging_face
from tools.tiny_model.spec import Family, TinyModelSpec


class TinyGGUF(NamedTuple):
    """A GGUF file, and a Hugging Face directory (fp32) with exactly the weights that the file holds."""

    path: Path
    reference: Path


def tiny_checkpoint(family: Family = "llama", **options: Any) -> Path:
    """Return the directory of a tiny Hugging Face checkpoint; `options` are fields of `TinyModelSpec`.

    It is shared: a test that changes files uses `write_hugging_face` into its own tmp_path.
    """
    spec = msgspec.convert({"family": family, **options}, TinyModelSpec)
    directory = _cache_directory() / f"{family}-{_digest(spec)}"
    if not directory.exists():
        write_hugging_face(spec, directory)
    return directory


def tiny_gguf(
    family: Family = "llama",
    quant: str = "F32",
    *,
    embedding_quant: str | None = None,
    value_quant: str | None = None,
    num_shards: int = 1,
    **options: Any,
) -> TinyGGUF:
    """Return a tiny GGUF file and its reference; types of blocks of 256 values get hidden_size=256."""
    if quant.endswith(("_K", "_XS")):
        options = {"hidden_size": 256, "head_dim": 64, **options}
    spec = msgspec.convert({"family": family, **options}, TinyModelSpec)
    directory = _cache_directory() / f"{family}-{quant}-{_digest(spec, embedding_quant, value_quant, num_shards)}"
    path, reference = directory / "tiny.gguf", directory / "reference"
    if not directory.exists():
        weights = write_gguf(
            spec, path, quant, embedding_quant=embedding_quant, value_quant=value_quant, num_shards=num_shards
        )
        write_hugging_face(msgspec.structs.replace(spec, dtype="float32"), reference, weights=weights)
    if num_shards > 1:
        path = directory / f"tiny-00001-of-{num_shards:05d}.gguf"
    return TinyGGUF(path, reference)


def _digest(*key: object) -> str:
    return hashlib.blake2b(msgspec.json.encode(key), digest_size=8).hexdigest()


@functools.cache
def _cache_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="pagewire-tiny-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
