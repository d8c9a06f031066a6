"""A list of modules that are not quantized means the same in every method."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.checkpoint.json_reader import JSONReader
from pagewire.checkpoint.quantization.quantization_config import QuantizationConfig
from pagewire.checkpoint.quantization.schemes import AWQScheme
from pagewire.checkpoint.quantization.skip_rules import read_skip_rules
from pagewire.ipc.errors import ConfigError

SCHEME = AWQScheme(group_size=128)
Q_PROJ = "model.layers.1.self_attn.q_proj"


def is_skipped(module: str, *entries: str, by_substring: bool = False) -> bool:
    stated = JSONReader(Path("config.json"), {"ignore": list(entries)})
    rules = read_skip_rules(stated, "ignore", by_substring=by_substring)
    return QuantizationConfig(method="awq", default=SCHEME, rules=rules).scheme_of(module) is None


@pytest.mark.parametrize("by_substring", [False, True])
@pytest.mark.parametrize("entry", [Q_PROJ, "model.layers.1", "layers.1.self_attn", "self_attn", "q_proj"])
def test_entry_may_be_whole_above_or_an_end(entry: str, by_substring: bool) -> None:
    assert is_skipped(Q_PROJ, entry, by_substring=by_substring)
    assert is_skipped(Q_PROJ, "lm_head", entry, by_substring=by_substring)
    assert not is_skipped("model.layers.2.mlp.down_proj", entry, by_substring=by_substring)


@pytest.mark.parametrize(("module", "entry"), [("model.layers.0.mlp.gate_proj", "mlp.gate"), (Q_PROJ, "attn.q_proj")])
def test_only_a_substring_ends_within_a_word(module: str, entry: str) -> None:
    assert is_skipped(module, entry, by_substring=True)
    assert not is_skipped(module, entry)


def test_layer_1_is_not_layer_10_among_names() -> None:
    assert not is_skipped("model.layers.10.self_attn.q_proj", "model.layers.1")


def test_dot_of_a_name_is_no_wildcard() -> None:
    assert not is_skipped("model.layers.1.self_attnXq_proj", "self_attn.q_proj", by_substring=True)


@pytest.mark.parametrize("by_substring", [False, True])
def test_regular_expression_is_matched_from_the_start(by_substring: bool) -> None:
    assert is_skipped(Q_PROJ, r"re:.*\.[qk]_proj$", by_substring=by_substring)
    assert not is_skipped(Q_PROJ, "re:q_proj", by_substring=by_substring)


def test_each_regular_expression_stands_for_itself() -> None:
    entries = [
        "re:(?i).*GATE_PROJ$",
        r"re:(.)(.).*\2\1$",
    ]  # flags count at the start of one alone, numbers from its own
    assert is_skipped("model.layers.0.mlp.gate_proj", *entries)
    assert is_skipped("abxba", *entries)
    assert not is_skipped(Q_PROJ, *entries)


def test_no_list_skips_nothing() -> None:
    assert not is_skipped(Q_PROJ)
    assert read_skip_rules(JSONReader(Path("config.json"), {}), "ignore") == ()


@pytest.mark.parametrize("entries", ["lm_head", [1], ["re:("]])
def test_bad_list_is_refused_by_its_key(entries: object) -> None:
    stated = JSONReader(Path("config.json"), {"ignore": entries})
    with pytest.raises(ConfigError, match=r"config\.json: ignore"):
        read_skip_rules(stated, "ignore")
