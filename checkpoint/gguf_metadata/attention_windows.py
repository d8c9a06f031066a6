"""Which layers of a GGUF model attend to a window."""

from __future__ import annotations

from pagewire.ipc.errors import ConfigError

from ..gguf_file import GGUFFile
from ..gguf_header import GGUFArray, ValueType
from ..model_config import LayerKind

# What llama.cpp (src/llama-model.cpp) takes where a file, as most of these families, doesn't state it.
_DEFAULT_WINDOWS = {"gemma2": 4096}
_DEFAULT_PERIODS = {"gemma2": 2, "gemma3": 6}


def read_attention_windows(file: GGUFFile, name: str, num_layers: int) -> tuple[tuple[LayerKind, ...], int | None]:
    """Return the kind of each layer, and the window of the sliding ones (None without such layers).

    Args:
        file: the open model.
        name: its architecture, the prefix of its keys.
        num_layers: how many layers it has.

    Raises:
        ConfigError: if the window or the pattern is impossible.
    """
    key = f"{name}.attention.sliding_window"
    window = file.get_int(key, _DEFAULT_WINDOWS.get(name, 0)) or 0
    if window < 0:
        raise ConfigError(f"{file.path}: {key} is {window}, must be at least 0")
    if window == 0:
        return (LayerKind.FULL,) * num_layers, None
    is_sliding = _sliding_layers(file, name, num_layers)
    kinds = tuple(LayerKind.SLIDING if sliding else LayerKind.FULL for sliding in is_sliding)
    return kinds, window if LayerKind.SLIDING in kinds else None


def _sliding_layers(file: GGUFFile, name: str, num_layers: int) -> list[bool]:
    key = f"{name}.attention.sliding_window_pattern"
    pattern = file.metadata.get(key)
    if isinstance(pattern, GGUFArray):
        if pattern.element_type is ValueType.STRING or len(pattern) < num_layers:
            raise ConfigError(f"{file.path}: {key} must have a truth value for each of {num_layers} layers")
        return [bool(value) for value in pattern.to_list()[:num_layers]]
    # Every period-th layer attends fully; 0: none does.
    period = _DEFAULT_PERIODS.get(name, 0) if pattern is None else file.require_int(key)
    if period < 0:
        raise ConfigError(f"{file.path}: {key} is {period}, must be at least 0")
    return [period == 0 or layer % period < period - 1 for layer in range(num_layers)]
