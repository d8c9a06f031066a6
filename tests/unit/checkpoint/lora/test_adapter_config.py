from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pagewire.checkpoint.lora.adapter_config import read_adapter_config
from pagewire.ipc.errors import ConfigError

PLAIN = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none", "target_modules": ["q_proj"]}


def write(directory: Path, **keys: object) -> Path:
    (directory / "adapter_config.json").write_text(json.dumps({**PLAIN, **keys}))
    return directory


def test_scales_follow_rank_and_alpha(tmp_path: Path) -> None:
    config = read_adapter_config(
        write(
            tmp_path,
            rank_pattern={"k_proj": 4, "layers.1.self_attn.q_proj": 2},
            alpha_pattern={"k_proj": 1},
        )
    )
    assert config.scale_of("model.layers.0.self_attn.q_proj") == 2.0
    assert config.rank_of("model.layers.0.self_attn.k_proj") == 4
    assert config.scale_of("model.layers.0.self_attn.k_proj") == 0.25
    assert config.rank_of("model.layers.1.self_attn.q_proj") == 2
    assert config.rank_of("model.layers.11.self_attn.q_proj") == 8


def test_rank_stabilized_scales_divide_by_the_root(tmp_path: Path) -> None:
    config = read_adapter_config(write(tmp_path, use_rslora=True))
    assert config.scale_of("q_proj") == 16 / math.sqrt(8)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"peft_type": "IA3"}, "peft_type"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "biases"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"r": None}, "r"),
        ({"rank_pattern": {"q_proj": "8"}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 0}}, "alpha_pattern.q_proj"),
    ],
)
def test_what_is_not_computed_is_refused_by_its_key(tmp_path: Path, keys: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_adapter_config(write(tmp_path, **keys))


def test_a_rank_above_the_limit_names_both(tmp_path: Path) -> None:
    config = read_adapter_config(write(tmp_path, rank_pattern={"q_proj": 32}))
    config.check_rank(32)
    with pytest.raises(ConfigError, match=r"rank 32, above --max-lora-rank 16"):
        config.check_rank(16)


def test_a_directory_without_a_configuration_is_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"adapter_config\.json"):
        read_adapter_config(tmp_path)


def test_a_pattern_that_is_none_is_named(tmp_path: Path) -> None:
    config = read_adapter_config(write(tmp_path, rank_pattern={"(": 4}))
    with pytest.raises(ConfigError, match="pattern"):
        config.rank_of("q_proj")
