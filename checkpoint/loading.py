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
        config = read_hf_config(path)
    elif path.exists():
        with GGUFFile(path) as file:
            config = read_gguf_config(file)
    else:
        raise ConfigError(f"{path}: there is no such file or directory")
    if config.rotary_dim % 2 or not 0 < config.rotary_dim <= config.head_dim:
        raise ConfigError(
            f"{path}: {config.rotary_dim} channels of each head would rotate; it must be an even number of at most "
            f"{config.head_dim}, the head's size"
        )
    return config
