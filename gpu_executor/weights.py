"""Filling a model from its checkpoint, with every tensor accounted for.

First each tensor of the file is matched with its place in the model; whatever is missing, left over or of another shape
is refused before a byte of it is read. Then they are read in the order of the file, several at a time: unpacking one
leaves most of a machine's cores idle, and the last tensor of each weight is followed by that weight's repacking.
"""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from pagewire.checkpoint.gguf_file import GGUFFile
from pagewire.checkpoint.model_config import ModelConfig
from pagewire.ipc.errors import ConfigError, MachineError

from .compute_dtype import CHECKPOINT_DTYPES
from .formats.checkpoint_tensor import CheckpointTensor
from .formats.dummy import dummy_tensors
from .formats.gguf import iterate_gguf
from .formats.kv_scales import with_canonical_scales
from .formats.quantized.assemble import PACKED_NAMES, assemble
from .formats.quantized.rounded import round_dummies
from .formats.safetensors import open_safetensors
from .layers.weight_target import WeightTarget
from .models.base import Model

logger = logging.getLogger(__name__)

# Tensors that some checkpoints carry though the configuration says it all: tables of rotary frequencies.
_REDUNDANT = re.compile(
    r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq|(rope_freqs|rope_factors_(long|short))\.weight"
)
# How many names an error lists before it only counts.
_MAX_NAMED = 5
# Reading is bound by memory long before all cores of a large machine are busy with it.
_MAX_READERS = 8


class _Match(NamedTuple):
    """A tensor of the checkpoint, its place, and about the bytes that it takes there."""

    target: WeightTarget
    tensor: CheckpointTensor
    num_bytes: int


def load_weights(
    model: Model,
    config: ModelConfig,
    *,
    load_format: str = "auto",
    num_threads: int = 1,
    check_size: Callable[[int], None] | None = None,
) -> None:
    """Read the checkpoint that `config` was read from into `model`, and make it ready to run.

    Args:
        model: filled in place.
        config: what the checkpoint is.
        load_format: "auto": read it; "dummy": random weights in its place, for which config.json is enough.
        num_threads: that read and unpack; more than 8 are not used.
        check_size: called with the bytes that the loaded weights will take, before any is read; raises if they are too
            many.

    Raises:
        ConfigError: if the checkpoint holds a tensor that the model has no place for, lacks one that it needs, or holds
            one of another shape or of a form that can't be read. The message names the tensor.
        MachineError: if memory runs out.
    """
    with _open_checkpoint(model, config, load_format) as tensors:
        matches = _match(model, config, tensors)
        num_bytes = sum(match.num_bytes for match in matches)
        if check_size is not None:
            check_size(num_bytes)
        _read(matches, LoadProgress(num_bytes), num_threads)
    model.finish_loading()


@contextmanager
def _open_checkpoint(model: Model, config: ModelConfig, load_format: str) -> Iterator[Iterable[CheckpointTensor]]:
    # The files are mapped only while they are read: their pages count as this process's memory.
    path = Path(config.model_path)
    if load_format == "dummy":
        yield _dummy_checkpoint(model, config)
    elif config.file_format == "gguf":
        with GGUFFile(path) as file:
            yield iterate_gguf(file, config)
    else:
        with open_safetensors(path) as stored:
            tensors = with_canonical_scales(stored)
            if config.quantization is None:
                yield tensors
            else:
                yield assemble(tensors, config.quantization, model.linear_modules(), config.model_path)


def _dummy_checkpoint(model: Model, config: ModelConfig) -> list[CheckpointTensor]:
    dtype = CHECKPOINT_DTYPES.get(config.dtype)
    if dtype is None:
        raise ConfigError(
            f"--load-format dummy: {config.model_path} holds packed weights, which have no random form; leave the flag "
            "out, or name a directory with a config.json.",
            param="load_format",
        )
    places = ((target.name, target.shape) for target in model.weight_targets() if not target.is_optional)
    tensors = dummy_tensors(places, dtype)
    if config.quantization is None:
        return tensors
    return round_dummies(tensors, config.quantization, model.linear_modules(), config.model_path)


def _match(model: Model, config: ModelConfig, tensors: Iterable[CheckpointTensor]) -> list[_Match]:
    """Pair all tensors with their places, in the order of the checkpoint."""
    places = {target.name: target for target in model.weight_targets()}
    matches = []
    for tensor in tensors:
        target = places.pop(tensor.name, None)
        if target is not None:
            _check_shape(target, tensor)
            if target.is_elsewhere:
                continue
            mine = tensor if target.part.is_whole else tensor.sliced(target.part)
            matches.append(_Match(target, mine, target.loaded_bytes(mine)))
        elif not (_is_redundant(tensor.name, config) or _is_zero_bias(tensor, config)):
            raise _no_such_tensor(tensor, config)
    names = [target.name for target in places.values() if not target.is_optional]
    if names:
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        raise ConfigError(f"{config.model_path}: the checkpoint lacks {', '.join(names[:_MAX_NAMED])}{more}")
    return matches


def _read(matches: Sequence[_Match], progress: LoadProgress, num_threads: int) -> None:
    with _one_thread_each(), ThreadPoolExecutor(min(num_threads, _MAX_READERS)) as readers:
        try:
            for match, _ in zip(matches, readers.map(_read_one, matches), strict=True):
                progress.add(match.num_bytes)
        except BaseException:
            readers.shutdown(cancel_futures=True)
            raise


@torch.inference_mode()  # the mode is a thread's own: a model made under it may be written to only under it
def _read_one(match: _Match) -> None:
    try:
        match.target.load(match.tensor)
    except (MemoryError, RuntimeError) as exc:
        # The frames below hold views of the mapped file, which could not be closed while they live.
        traceback.clear_frames(exc.__traceback__)
        if _is_out_of_memory(exc):
            raise MachineError(
                f"{match.tensor.source}: no memory is left to load it; serve a smaller model, or free memory."
            ) from exc
        raise


def _is_out_of_memory(exc: MemoryError | RuntimeError) -> bool:
    # torch has a class of its own for GPUs alone.
    return isinstance(exc, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(exc)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Keep torch from splitting the many small unpacking steps: they are shorter than the barrier after them.

    On two busy cores, two threads took 3 s and more to unpack SmolLM2 to float32, one 0.5.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


class LoadProgress:
    """Says in the log how far a long load is.

    Args:
        num_bytes: of the whole.
        clock: seconds, monotonic.
        interval_s: between two lines; a load that is shorter says nothing.
    """

    def __init__(self, num_bytes: int, clock: Callable[[], float] = time.monotonic, interval_s: float = 1.0) -> None:
        self._num_bytes = num_bytes
        self._clock = clock
        self._interval_s = interval_s
        self._num_loaded = 0
        self._last = clock()

    def add(self, num_bytes: int) -> None:
        """Count what was loaded since the last call."""
        self._num_loaded += num_bytes
        now = self._clock()
        if now - self._last >= self._interval_s:
            self._last = now
            logger.info(
                "loading weights: %d %% of %.1f GB", 100 * self._num_loaded // self._num_bytes, self._num_bytes / 1e9
            )


def _check_shape(target: WeightTarget, tensor: CheckpointTensor) -> None:
    if tensor.shape != target.shape:
        raise ConfigError(
            f"{tensor.source}: has shape {list(tensor.shape)}, the configuration asks for {list(target.shape)}"
        )


def _no_such_tensor(tensor: CheckpointTensor, config: ModelConfig) -> ConfigError:
    text = f"{tensor.source}: the {config.architecture} of this configuration has no such tensor"
    if config.quantization is None and tensor.name.rpartition(".")[2] in PACKED_NAMES:
        text += (
            "; it belongs to a quantized layer, but config.json has no quantization_config: add the one it came with"
        )
    return ConfigError(text)


def _is_redundant(name: str, config: ModelConfig) -> bool:
    # With tied embeddings some writers store the output layer all the same: it is the embedding.
    return _REDUNDANT.fullmatch(name) is not None or (config.tie_word_embeddings and name == "lm_head.weight")


def _is_zero_bias(tensor: CheckpointTensor, config: ModelConfig) -> bool:
    # Early GPTQ tools gave every layer a bias, of zeros where the model has none.
    if config.quantization is None or not tensor.name.endswith(".bias") or len(tensor.shape) != 1:
        return False
    values = torch.empty(tensor.shape)
    tensor.copy_to(values)
    return not bool(values.any())
