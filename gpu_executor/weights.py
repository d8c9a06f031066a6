"""Filling a model from its checkpoint, with every tensor accounted for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pagewire.checkpoint.gguf_file import GGUFFile
from pagewire.checkpoint.model_config import ModelConfig
from pagewire.ipc.errors import ConfigError

from .formats.checkpoint_tensor import CheckpointTensor
from .formats.gguf import iterate_gguf
from .formats.safetensors import iterate_safetensors
from .layers.weight_target import WeightTarget
from .models.base import Model

# Tensors that some checkpoints carry though the configuration says it all: tables of rotary frequencies.
_REDUNDANT = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq|rope_freqs\.weight")
# How many names an error lists before it only counts.
_MAX_NAMED = 5


def load_weights(model: Model, config: ModelConfig) -> None:
    """Read the checkpoint that `config` was read from into `model`, and make it ready to run.

    Raises:
        ConfigError: if the checkpoint holds a tensor that the model has no place for, lacks one that it needs, or holds
            one of another shape or of a form that can't be read. The message names the tensor.
    """
    path = Path(config.model_path)
    with _one_thread():
        if config.file_format == "gguf":
            with GGUFFile(path) as file:
                _load(model, config, iterate_gguf(file, config))
        else:
            _load(model, config, iterate_safetensors(path))
    model.finish_loading()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch from splitting the many small unpacking steps.

    They are shorter than the barrier after them: on two busy cores, two threads took 3 s and more for SmolLM2, one 0.5.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _load(model: Model, config: ModelConfig, tensors: Iterable[CheckpointTensor]) -> None:
    missing = {target.name: target for target in model.weight_targets()}
    for tensor in tensors:
        target = missing.pop(tensor.name, None)
        if target is not None:
            _check_shape(target, tensor)
            target.load(tensor)
        elif not _is_redundant(tensor.name, config):
            raise ConfigError(f"{tensor.source}: the {config.architecture} of this configuration has no such tensor")
    if missing:
        names = list(missing)
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        raise ConfigError(f"{config.model_path}: the checkpoint lacks {', '.join(names[:_MAX_NAMED])}{more}")


def _check_shape(target: WeightTarget, tensor: CheckpointTensor) -> None:
    if tensor.shape != target.shape:
        raise ConfigError(
            f"{tensor.source}: has shape {list(tensor.shape)}, the configuration asks for {list(target.shape)}"
        )


def _is_redundant(name: str, config: ModelConfig) -> bool:
    # With tied embeddings some writers store the output layer all the same: it is the embedding.
    return _REDUNDANT.fullmatch(name) is not None or (config.tie_word_embeddings and name == "lm_head.weight")
