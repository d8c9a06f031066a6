"""The rotary embedding's parameters out of a Hugging Face config.json, in any of the spellings in use.

Three generations of them: `rope_scaling: {"type": ...}`, `rope_scaling: {"rope_type": ...}` (some files carry both
keys), and `rope_parameters`, which also holds `rope_theta`. All end in the same `RopeConfig`.
"""

from __future__ import annotations

import msgspec

from pagewire.ipc.errors import ConfigError

from ..json_reader import JSONReader
from ..model_config import RopeScaling

ROPE_KINDS = ("linear", "dynamic", "llama3", "yarn", "longrope")
_GLOBAL_KEY, _LOCAL_KEY = "full_attention", "sliding_attention"
_ORIGINAL_LENGTH = "original_max_position_embeddings"
_UNSCALED_KEYS = frozenset({"rope_theta", "partial_rotary_factor"})


class RopeDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a family takes where its config.json is silent.

    Attributes:
        theta: the base of the frequencies.
        local_theta: that of layers that attend to a window; None: they are not told from others.
        has_stretched_length: the length that is stated is the longest, whatever the kind of scaling.
    """

    theta: float = 10_000.0
    local_theta: float | None = None
    has_stretched_length: bool = False


PLAIN_ROPE = RopeDefaults()
"""Those of most families."""


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How positions become rotations, and how far.

    Attributes:
        theta: the base of the frequencies.
        partial_rotary_factor: the share of each head's channels that rotate.
        scaling: how frequencies are stretched; None if they are not.
        max_position: the longest context, scaling included.
        local_theta: the base of layers that attend to a window, which are not scaled; None: they are as the others.
    """

    theta: float
    partial_rotary_factor: float
    scaling: RopeScaling | None
    max_position: int
    local_theta: float | None = None


def read_rope_config(config: JSONReader, defaults: RopeDefaults = PLAIN_ROPE) -> RopeConfig:
    """Read the rotary parameters of a config.json.

    Args:
        config: config.json.
        defaults: the family's.

    Raises:
        ConfigError: if a key is missing or has a wrong value, or the kind of scaling is unknown.
    """
    rope = _rope_object(config, has_local=defaults.local_theta is not None)
    # The newer, nested place wins where a file carries both.
    theta = rope.get_positive_float("rope_theta") or config.get_positive_float("rope_theta") or defaults.theta
    partial = (
        rope.get_positive_float("partial_rotary_factor") or config.get_positive_float("partial_rotary_factor") or 1.0
    )
    max_position_embeddings = config.require_int("max_position_embeddings")
    # At least 2: a formula divides by its logarithm.
    original = config.get_int(_ORIGINAL_LENGTH, minimum=2) or rope.get_int(_ORIGINAL_LENGTH, minimum=2)
    scaling = _read_scaling(rope, original or max_position_embeddings, max_position_embeddings)
    if original is None and scaling is not None and scaling.kind == "longrope":
        raise config.missing(_ORIGINAL_LENGTH)  # the length that decides between its two lists of factors
    return RopeConfig(
        theta=theta,
        partial_rotary_factor=partial,
        scaling=scaling,
        max_position=max_position_embeddings
        if defaults.has_stretched_length
        else scaled_max_position(max_position_embeddings, scaling),
        local_theta=_local_theta(config, defaults.local_theta),
    )


def check_frequency_factors(config: JSONReader, scaling: RopeScaling | None, rotary_dim: int) -> None:
    """Check that scaling by a factor a frequency has one for each of them.

    Args:
        config: config.json, for the name of the key.
        scaling: what `read_rope_config` read there.
        rotary_dim: channels of each head that rotate; two of them share a frequency.

    Raises:
        ConfigError: if a list is too short or too long.
    """
    if scaling is None or scaling.kind != "longrope":
        return
    for key, factors in (("short_factor", scaling.short_factors), ("long_factor", scaling.long_factors)):
        if len(factors) != rotary_dim // 2:
            raise _rope_object(config, has_local=True).fault(
                key, f"has {len(factors)} numbers; {rotary_dim} rotating channels need {rotary_dim // 2}"
            )


def scaled_max_position(max_position_embeddings: int, scaling: RopeScaling | None) -> int:
    """Return the longest context, as vLLM derives it from the stated one.

    llama3 and longrope configurations state the stretched length already; linear and dynamic ones the trained length;
    yarn ones either, so the length before stretching counts there.
    """
    if scaling is None or scaling.kind in ("llama3", "longrope"):
        return max_position_embeddings
    base = scaling.original_max_position if scaling.kind == "yarn" else max_position_embeddings
    return int(base * scaling.factor)


def _rope_object(config: JSONReader, *, has_local: bool) -> JSONReader:
    """Return the parameters of layers that attend fully, which are those of all unless `has_local`."""
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.get_object(key)
        if rope is None:
            continue
        nested = [name for name, value in rope.data.items() if isinstance(value, dict)]
        if has_local and nested:
            return rope.get_object(_GLOBAL_KEY) or JSONReader(config.path, {}, f"{key}.{_GLOBAL_KEY}.")
        if nested:
            raise rope.fault(
                nested[0], "is a rotary embedding of its own for one kind of layer, which is not supported"
            )
        return rope
    return JSONReader(config.path, {}, "rope_parameters.")


def _local_theta(config: JSONReader, default: float | None) -> float | None:
    if default is None:
        return None
    parameters = config.get_object("rope_parameters")
    local = parameters.get_object(_LOCAL_KEY) if parameters is not None else None
    if local is None:
        return config.get_positive_float("rope_local_base_freq", default)
    kind = local.get_str("rope_type", "default")
    if kind != "default":
        raise local.fault("rope_type", f"is {kind!r}; the layers that attend to a window can't be scaled")
    return local.get_positive_float("rope_theta") or config.get_positive_float("rope_local_base_freq", default)


def _read_scaling(rope: JSONReader, original_max_position: int, max_position_embeddings: int) -> RopeScaling | None:
    kind = rope.get_str("rope_type") or rope.get_str("type")
    if kind is None:
        stated = sorted(set(rope.data) - _UNSCALED_KEYS)
        if stated:
            raise ConfigError(f"{rope.path}: the rotary scaling with {', '.join(stated)} lacks the key rope_type")
        return None
    match kind:
        case "default":
            return None
        case "linear" | "dynamic":
            # Both measure against max_position_embeddings, whatever else is stated.
            return RopeScaling(
                kind=kind, factor=rope.require_positive_float("factor"), original_max_position=max_position_embeddings
            )
        case "llama3":
            return RopeScaling(
                kind=kind,
                factor=rope.require_positive_float("factor"),
                original_max_position=original_max_position,
                low_freq_factor=rope.require_positive_float("low_freq_factor"),
                high_freq_factor=rope.require_positive_float("high_freq_factor"),
            )
        case "yarn":
            return _read_yarn(rope, original_max_position, max_position_embeddings)
        case "longrope" | "su":  # as the first releases called it
            return _read_longrope(rope, original_max_position, max_position_embeddings)
    raise ConfigError(
        f"{rope.path}: the rotary scaling {kind!r} is not known; known are default, {', '.join(ROPE_KINDS)}"
    )


def _read_yarn(rope: JSONReader, original_max_position: int, max_position_embeddings: int) -> RopeScaling:
    factor = rope.get_positive_float("factor")
    return RopeScaling(
        kind="yarn",
        factor=factor if factor is not None else max_position_embeddings / original_max_position,
        original_max_position=original_max_position,
        beta_fast=rope.get_positive_float("beta_fast") or 32.0,
        beta_slow=rope.get_positive_float("beta_slow") or 1.0,
        attention_factor=rope.get_positive_float("attention_factor"),
        mscale=rope.get_float("mscale"),
        mscale_all_dim=rope.get_float("mscale_all_dim"),
        truncate=rope.get_bool("truncate", True),
    )


def _read_longrope(rope: JSONReader, original_max_position: int, max_position_embeddings: int) -> RopeScaling:
    factors = {key: rope.get_positive_floats(key) for key in ("short_factor", "long_factor")}
    for key, values in factors.items():
        if values is None:
            raise rope.missing(key)
    factor = rope.get_positive_float("factor")
    return RopeScaling(
        kind="longrope",
        factor=factor if factor is not None else max_position_embeddings / original_max_position,
        original_max_position=original_max_position,
        attention_factor=rope.get_positive_float("attention_factor"),
        short_factors=factors["short_factor"] or (),
        long_factors=factors["long_factor"] or (),
        short_attention_factor=rope.get_positive_float("short_mscale"),
        long_attention_factor=rope.get_positive_float("long_mscale"),
    )
