from __future__ import annotations

import json

import pytest

from pagewire.ipc.errors import ConfigError
from pagewire.ipc.lora_config import LoraConfig, LoraModule, spell_module


def test_modules_are_read_from_both_forms() -> None:
    as_json = json.dumps({"name": "b", "path": "/b=1", "base_model_name": "base"})
    config = LoraConfig(enable_lora=True, lora_modules=("a=/with=sign", as_json))
    assert config.modules == (LoraModule("a", "/with=sign"), LoraModule("b", "/b=1", "base"))


def test_a_module_is_read_as_it_is_spelled() -> None:
    modules = (LoraModule("a b", "/p=q"), LoraModule("c", "/d", "base", "digest"))
    config = LoraConfig(enable_lora=True, lora_modules=tuple(map(spell_module, modules)))
    assert config.modules == modules


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"lora_modules": ("a=/a",)}, "--enable-lora"),
        ({"enable_lora": True, "lora_modules": ("a",)}, "name=path"),
        ({"enable_lora": True, "lora_modules": ("a=",)}, "path is empty"),
        ({"enable_lora": True, "lora_modules": ("=/a",)}, "1 to 256 characters"),
        ({"enable_lora": True, "lora_modules": ("{no json}",)}, "name=path"),
        ({"enable_lora": True, "lora_modules": ('{"name": "a"}',)}, "path"),
        ({"enable_lora": True, "lora_modules": ("a=/a", "a=/b")}, "twice"),
        ({"enable_lora": True, "lora_modules": ("a=/a", "b=/b"), "max_loras": 1}, "--max-loras 1"),
        ({"max_loras": 0}, "--max-loras 0"),
        ({"max_lora_rank": 1000}, "--max-lora-rank 1000"),
        ({"max_loras": 4, "max_cpu_loras": 2}, "--max-cpu-loras 2"),
    ],
)
def test_what_can_not_be_served_is_refused_by_name(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        LoraConfig(**options)  # type: ignore[arg-type]  # one case each


def test_the_higher_of_two_limits_counts() -> None:
    assert LoraConfig(max_loras=2).max_loaded == 2
    assert LoraConfig(max_loras=1, max_cpu_loras=3).max_loaded == 3
