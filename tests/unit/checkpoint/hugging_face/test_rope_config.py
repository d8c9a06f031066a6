"""Every spelling of rotary scaling means the same, and the longest context follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagewire.checkpoint.hugging_face.rope_config import (
    RopeConfig,
    RopeDefaults,
    check_frequency_factors,
    read_rope_config,
)
from pagewire.checkpoint.json_reader import JSONReader
from pagewire.checkpoint.model_config import RopeScaling
from pagewire.ipc.errors import ConfigError

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0, "truncate": False}
LONGROPE = {
    "short_factor": [1, 1.5], "long_factor": [2.0, 4.0], "original_max_position_embeddings": 64,
    "short_mscale": 1.1, "long_mscale": 1.2, "attention_factor": 1.3,
}  # fmt: skip
KINDS: dict[str, tuple[dict[str, Any], RopeScaling, int]] = {
    "linear": ({"factor": 2.0}, RopeScaling(kind="linear", factor=2.0, original_max_position=256), 512),
    "dynamic": ({"factor": 2.0}, RopeScaling(kind="dynamic", factor=2.0, original_max_position=256), 512),
    "llama3": (
        LLAMA3,
        RopeScaling(
            kind="llama3", factor=8.0, original_max_position=64, low_freq_factor=1.0, high_freq_factor=4.0
        ),
        256,
    ),
    "yarn": (
        YARN,
        RopeScaling(kind="yarn", factor=4.0, original_max_position=64, beta_fast=16.0, truncate=False),
        256,
    ),
    "longrope": (
        LONGROPE,
        RopeScaling(
            kind="longrope", factor=4.0, original_max_position=64, attention_factor=1.3, short_factors=(1.0, 1.5),
            long_factors=(2.0, 4.0), short_attention_factor=1.1, long_attention_factor=1.2
        ),
        256,
    ),
}  # fmt: skip


def read(**config: Any) -> RopeConfig:
    return read_rope_config(JSONReader(Path("config.json"), {"max_position_embeddings": 256, **config}))


@pytest.mark.parametrize("kind", KINDS)
def test_all_spellings_are_equal(kind: str) -> None:
    parameters, scaling, max_position = KINDS[kind]
    expected = RopeConfig(theta=5e5, partial_rotary_factor=1.0, scaling=scaling, max_position=max_position)
    for keys in ({"type": kind}, {"rope_type": kind}, {"type": kind, "rope_type": kind}):
        assert read(rope_theta=5e5, rope_scaling={**keys, **parameters}) == expected
        assert read(rope_parameters={**keys, **parameters, "rope_theta": 5e5}) == expected
        assert read(rope_theta=1e6, rope_parameters={**keys, **parameters, "rope_theta": 5e5}) == expected


def test_no_scaling_in_all_spellings() -> None:
    expected = RopeConfig(theta=10_000.0, partial_rotary_factor=1.0, scaling=None, max_position=256)
    assert read() == expected
    assert read(rope_scaling=None, rope_parameters=None) == expected
    assert read(rope_scaling={"type": "default"}) == expected
    assert read(rope_parameters={"rope_type": "default", "rope_theta": 10_000}) == expected
    assert read(rope_parameters={"rope_theta": 10_000.0}) == expected


def test_yarn_falls_back_to_the_stated_length_and_to_its_ratio() -> None:
    without_original = read(rope_scaling={"rope_type": "yarn", "factor": 4.0})
    assert without_original.scaling == RopeScaling(kind="yarn", factor=4.0, original_max_position=256)
    assert without_original.max_position == 1024
    without_factor = read(rope_scaling={"rope_type": "yarn", "original_max_position_embeddings": 64})
    assert without_factor.scaling == RopeScaling(kind="yarn", factor=4.0, original_max_position=64)
    assert without_factor.max_position == 256


def test_longrope_may_state_its_trained_length_beside_it_and_a_factor_of_its_own() -> None:
    factors = {"short_factor": [1.0], "long_factor": [2.0]}
    expected = RopeScaling(
        kind="longrope", factor=4.0, original_max_position=64, short_factors=(1.0,), long_factors=(2.0,)
    )
    # As Phi-3 states it; the first of its releases said "su".
    for kind in ("longrope", "su"):
        config = read(original_max_position_embeddings=64, rope_scaling={"type": kind, **factors})
        assert (config.scaling, config.max_position) == (expected, 256)
    config = read(original_max_position_embeddings=64, rope_scaling={"type": "longrope", "factor": 8.0, **factors})
    assert config.scaling is not None
    assert (config.scaling.factor, config.max_position) == (8.0, 256)


def test_longrope_needs_a_factor_for_each_frequency() -> None:
    config = JSONReader(
        Path("config.json"), {"max_position_embeddings": 256, "rope_scaling": {"type": "longrope", **LONGROPE}}
    )
    scaling = read_rope_config(config).scaling
    check_frequency_factors(config, scaling, rotary_dim=4)
    with pytest.raises(ConfigError, match=r"rope_scaling\.short_factor has 2 numbers; 6 rotating channels need 3"):
        check_frequency_factors(config, scaling, rotary_dim=6)


def test_partial_rotation_is_read_from_both_places() -> None:
    assert read(partial_rotary_factor=0.5).partial_rotary_factor == 0.5
    assert read(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.25}).partial_rotary_factor == 0.25


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "ntk", "factor": 2.0}, "'ntk' is not known; known are default, linear, dynamic"),
        ({"type": "mrope", "mrope_section": [1, 2]}, "'mrope' is not known"),
        ({"factor": 2.0}, "lacks the key rope_type"),
        ({"rope_type": "linear"}, r"lacks the key rope_scaling\.factor"),
        ({"rope_type": "linear", "factor": "two"}, r"rope_scaling\.factor must be a number"),
        ({"rope_type": "linear", "factor": 0}, r"rope_scaling\.factor must be above 0"),
        ({"rope_type": "llama3", "factor": 2.0}, r"lacks the key rope_scaling\.low_freq_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, r"lacks the key rope_scaling\.long_factor"),
        (
            {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
            "lacks the key original_max_position_embeddings",
        ),
        (
            {**LONGROPE, "rope_type": "longrope", "long_factor": [1.0, 0]},
            r"long_factor must be a list .* above 0, has 0",
        ),
        ({**LONGROPE, "rope_type": "longrope", "long_factor": 2.0}, r"long_factor must be a list of numbers, is 2\.0"),
        (
            {"full_attention": {"rope_type": "default"}},
            r"rope_scaling\.full_attention is a rotary embedding of its own",
        ),
        ("linear", "rope_scaling must be an object"),
    ],
)
def test_unknown_or_incomplete_scaling_is_refused(scaling: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(rope_scaling=scaling)


def read_by_layers(**config: Any) -> RopeConfig:
    defaults = RopeDefaults(theta=1e6, local_theta=10_000.0, has_stretched_length=True)
    return read_rope_config(JSONReader(Path("config.json"), {"max_position_embeddings": 256, **config}), defaults)


def test_layers_that_slide_may_rotate_by_a_base_of_their_own() -> None:
    def facts(**config: Any) -> tuple[float, float | None, float | None]:
        rope = read_by_layers(**config)
        assert rope.max_position == 256
        return rope.theta, rope.local_theta, rope.scaling.factor if rope.scaling else None

    linear = {"rope_type": "linear", "factor": 8.0}
    assert facts() == (1e6, 10_000.0, None)
    assert facts(rope_theta=5e5, rope_local_base_freq=500.0, rope_scaling=linear) == (5e5, 500.0, 8.0)
    by_layers = {
        "full_attention": {**linear, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
    }
    assert facts(rope_parameters=by_layers) == (5e5, 500.0, 8.0)
    assert facts(rope_parameters={"sliding_attention": {"rope_type": "default"}}) == (1e6, 10_000.0, None)
    assert facts(rope_parameters={"full_attention": linear}, rope_local_base_freq=500.0) == (1e6, 500.0, 8.0)


def test_scaled_window_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"sliding_attention\.rope_type is 'linear'"):
        read_by_layers(rope_parameters={"sliding_attention": {"rope_type": "linear", "factor": 2.0}})
