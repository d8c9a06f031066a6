"""The one door to a model's configuration, whatever format its checkpoint has."""

from __future__ import annotations

from pathlib import Path

from pagewire.ipc.errors import ConfigError

from .gguf_config import read_gguf_config
from .gguf_file import GGUFFile
from .hugging_face.hf_config import read_hf_config
from .model_config import ModelConfig


def load_model_config(path: Path) -> ModelConfig:
    """Read the configuration of a local checkpoint: a GGUF file, or a Hugging Face directory.

    Raises:
        ConfigError: if there is no checkpoint at `path`, or it is one that can't be served. One line that names the
            file and the place.
    """
    if path.is_dir():
        return read_hf_config(path)
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file or directory")
    with GGUFFile(path) as file:
        return read_gguf_config(file)
