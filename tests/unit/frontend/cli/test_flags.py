from __future__ import annotations

from collections import Counter

import pytest

from pagewire.frontend.cli.flags import (
    FlagOption,
    build_engine_config,
    build_server_config,
    config_flags,
    engine_flags,
    server_flags,
    spelled_out,
)
from pagewire.frontend.quantize.config import QuantizeConfig
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.server_config import ServerConfig


def test_each_flag_belongs_to_one_config():
    counts = Counter(flag.field for flag in [*engine_flags(), *server_flags()])
    assert [field for field, count in counts.items() if count > 1] == []


def test_every_field_with_a_description_can_be_a_click_option():
    for flag in [*engine_flags(), *server_flags()]:
        option = FlagOption(flag)
        assert option.name == flag.field
        assert flag.name in option.opts
        assert option.help


def test_a_field_without_description_is_no_flag():
    assert "model_path" not in {flag.field for flag in engine_flags()}


def test_nothing_given_is_the_default_config():
    assert build_engine_config({}) == EngineConfig()
    assert build_server_config({}) == ServerConfig()


def test_each_config_picks_its_own_values():
    given = {"port": 1, "block_size": 32, "log_level": "debug", "served_model_name": ("a", "b")}
    engine = build_engine_config(given)
    assert engine.cache.block_size == 32
    assert engine.log_level == "debug"
    assert engine.model.served_model_name == ("a", "b")
    assert build_server_config(given) == ServerConfig(port=1)


def test_a_bound_of_a_field_is_reported_by_its_flag():
    with pytest.raises(ConfigError, match="--max-logprobs"):
        build_engine_config({"max_logprobs": -2})


def test_the_configs_own_checks_come_through():
    with pytest.raises(ConfigError, match="--block-size 3 must be a power of two"):
        build_engine_config({"block_size": 3})


def test_defaults_are_shown_as_users_would_type_them():
    shown = {flag.field: flag.shown_default for flag in [*engine_flags(), *server_flags()]}
    assert shown["block_size"] == "16"
    assert shown["enable_prefix_caching"] == "on"
    assert shown["disable_log_stats"] == "off"
    assert shown["max_model_len"] == ""
    assert shown["api_key"] == ""


def test_defaults_of_several_values_are_shown_as_they_are_typed():
    assert {flag.field: flag.shown_default for flag in server_flags()}["allowed_methods"] == "*"


def test_opposite_of_a_switch_may_have_a_name_of_its_own():
    opposites = {flag.field: flag.opposite for flag in [*engine_flags(), *config_flags(QuantizeConfig)]}
    assert opposites["enable_prefix_caching"] == "--no-enable-prefix-caching"
    assert opposites["symmetric"] == "--asymmetric"
    assert spelled_out(config_flags(QuantizeConfig), {"symmetric": False}) == ["--asymmetric"]


def test_quantization_has_a_short_flag():
    options = {flag.field: FlagOption(flag).opts for flag in engine_flags()}
    assert options["quantization"] == ["--quantization", "-q"]
