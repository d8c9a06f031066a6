"""The rotary table of a model: frequencies by the kind of scaling, then cosines and sines of every position.

The table is a function of the configuration and the longest context alone, never of a request, so that a token's
rotation doesn't depend on how long its request has grown.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pagewire.checkpoint.model_config import LayerKind, ModelConfig, RopeScaling
from pagewire.ipc.errors import ConfigError

from ..kernels.layouts import RotaryTable


def build_rotary_table(
    config: ModelConfig, max_model_len: int, device: torch.device, kind: LayerKind = LayerKind.FULL
) -> RotaryTable:
    """Compute cosines and sines for the positions [0, max_model_len).

    Args:
        config: theta, rotary_dim and scaling.
        max_model_len: the longest context that the engine serves; dynamic scaling stretches to it, and longrope has
            its long factors apply if it exceeds the trained length.
        device: where the table goes.
        kind: of the layers that use it; those of a window may have a theta of their own, without scaling.

    Raises:
        ConfigError: if the kind of scaling is unknown.
    """
    if kind is LayerKind.SLIDING and config.local_rope_theta is not None:
        frequencies, attention_factor = _plain_frequencies(config.local_rope_theta, config.rotary_dim), 1.0
    else:
        frequencies, attention_factor = _frequencies(config, max_model_len)
    angles = torch.arange(max_model_len, dtype=torch.float32).unsqueeze(1) * frequencies
    return RotaryTable(
        cos=(angles.cos() * attention_factor).to(device), sin=(angles.sin() * attention_factor).to(device)
    )


def _frequencies(config: ModelConfig, max_model_len: int) -> tuple[Tensor, float]:
    """Return the frequencies [rotary_dim / 2] float32, and what cosines and sines are multiplied by."""
    base, dim, scaling = config.rope_theta, config.rotary_dim, config.rope_scaling
    if scaling is None:
        return _plain_frequencies(base, dim), 1.0
    match scaling.kind:
        case "linear":
            return _plain_frequencies(base, dim) / scaling.factor, 1.0
        case "dynamic":
            return _plain_frequencies(_dynamic_base(base, dim, scaling, max_model_len), dim), 1.0
        case "llama3":
            return _llama3_frequencies(_plain_frequencies(base, dim), scaling), 1.0
        case "yarn":
            return _yarn_frequencies(base, dim, scaling), _yarn_attention_factor(scaling)
        case "longrope":
            return _longrope_frequencies(base, dim, scaling, is_long=max_model_len > scaling.original_max_position)
    known = "linear, dynamic, llama3, yarn and longrope"
    raise ConfigError(f"rotary scaling {scaling.kind!r} is unknown: known are {known}")


def _plain_frequencies(base: float, dim: int) -> Tensor:
    return 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)


def _dynamic_base(base: float, dim: int, scaling: RopeScaling, max_model_len: int) -> float:
    # NTK-aware: the base grows so that the slowest frequency just covers the stretched context.
    length = max(max_model_len, scaling.original_max_position)
    stretch = scaling.factor * length / scaling.original_max_position - (scaling.factor - 1)
    return float(base * stretch ** (dim / (dim - 2)))


def _llama3_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Slow frequencies are divided by the factor, fast ones kept, those between blended.

    Source: Llama 3.1's reference code; Dubey et al. 2024 (arXiv 2407.21783), section 3.4.2.
    """
    if scaling.frequency_factors:
        return frequencies / torch.tensor(scaling.frequency_factors)
    wavelengths = 2 * math.pi / frequencies
    longest_kept = scaling.original_max_position / scaling.high_freq_factor
    shortest_divided = scaling.original_max_position / scaling.low_freq_factor
    kept_share = (scaling.original_max_position / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - kept_share) * frequencies / scaling.factor + kept_share * frequencies
    slow = torch.where(wavelengths > shortest_divided, frequencies / scaling.factor, blended)
    return torch.where(wavelengths < longest_kept, frequencies, slow)


def _yarn_frequencies(base: float, dim: int, scaling: RopeScaling) -> Tensor:
    """Channels that turn often within the trained context are kept, those that turn seldom divided by the factor.

    Source: YaRN, Peng et al. 2023 (arXiv 2309.00071), section 3.2.
    """

    def channel_of_rotations(rotations: float) -> float:
        return dim * math.log(scaling.original_max_position / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = channel_of_rotations(scaling.beta_fast), channel_of_rotations(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a ramp without a width divides by zero
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = _plain_frequencies(base, dim)
    return kept / scaling.factor * ramp + kept * (1 - ramp)


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _yarn_mscale(scaling.factor, scaling.mscale) / _yarn_mscale(scaling.factor, scaling.mscale_all_dim)
    return _yarn_mscale(scaling.factor, 1.0)


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope_frequencies(base: float, dim: int, scaling: RopeScaling, *, is_long: bool) -> tuple[Tensor, float]:
    """Each frequency is divided by a factor of its own, of one of two lists that were searched for.

    Which list holds is decided by what is served: a request's first tokens must not rotate otherwise once it has grown
    beyond the trained length, as their keys are cached by then.

    Source: LongRoPE, Ding et al. 2024 (arXiv 2402.13753).
    """
    factors = scaling.long_factors if is_long else scaling.short_factors
    attention_factor = scaling.long_attention_factor if is_long else scaling.short_attention_factor
    if attention_factor is None:
        attention_factor = scaling.attention_factor
    if attention_factor is None:
        attention_factor = _longrope_attention_factor(scaling)
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    return 1.0 / (torch.tensor(factors, dtype=torch.float32) * base**exponents), attention_factor


def _longrope_attention_factor(scaling: RopeScaling) -> float:
    if scaling.factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_max_position))
