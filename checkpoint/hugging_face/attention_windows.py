"""Which layers attend to a window, out of the several ways in which config.json says so."""

from __future__ import annotations

from ..json_reader import JSONReader
from ..model_config import LayerKind
from .families import Family

_LAYER_KINDS = {"full_attention": LayerKind.FULL, "sliding_attention": LayerKind.SLIDING}
_DEFAULT_MAX_WINDOW_LAYERS = 28


def read_attention_windows(
    config: JSONReader, family: Family, num_layers: int
) -> tuple[tuple[LayerKind, ...], int | None]:
    """Return the kind of each layer, and the window of the sliding ones (None without such layers).

    Raises:
        ConfigError: if a key has an impossible value.
    """
    window = config.get_int("sliding_window")
    if not config.has("sliding_window"):  # null, unlike an absent key, says that there is none
        window = family.default_window
    if not config.get_bool("use_sliding_window", not family.window_needs_switch):
        window = None
    kinds = _layer_kinds(config, family, num_layers) if window is not None else (LayerKind.FULL,) * num_layers
    return kinds, window if LayerKind.SLIDING in kinds else None


def alternating_layers(num_layers: int, period: int) -> tuple[LayerKind, ...]:
    """Return the kinds of layers of which every `period`-th attends fully, the last of each group."""
    return tuple(LayerKind.SLIDING if (layer + 1) % period else LayerKind.FULL for layer in range(num_layers))


def _layer_kinds(config: JSONReader, family: Family, num_layers: int) -> tuple[LayerKind, ...]:
    stated = config.get_str_list("layer_types")
    if stated is not None:
        if len(stated) != num_layers:
            raise config.fault("layer_types", f"has {len(stated)} entries for {num_layers} layers")
        unknown = sorted(set(stated) - _LAYER_KINDS.keys())
        if unknown:
            raise config.fault("layer_types", f"has {unknown[0]!r}; known are {', '.join(_LAYER_KINDS)}")
        return tuple(_LAYER_KINDS[name] for name in stated)
    if family.default_window_period is not None:
        period = config.get_int("sliding_window_pattern", family.default_window_period) or family.default_window_period
        return alternating_layers(num_layers, period)
    if family.window_needs_layer_types:
        return (LayerKind.FULL,) * num_layers
    if family.window_on_all_layers:
        return (LayerKind.SLIDING,) * num_layers
    first = config.get_int("max_window_layers", _DEFAULT_MAX_WINDOW_LAYERS, minimum=0) or 0
    return tuple(LayerKind.SLIDING if layer >= first else LayerKind.FULL for layer in range(num_layers))
