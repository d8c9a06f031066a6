"""The ways to ask for speculation, and what is refused by name."""

from __future__ import annotations

import click
import pytest

from pagewire.frontend.cli.config_file import read_config_file
from pagewire.frontend.cli.flags import FlagOption, build_engine_config, engine_flags, spelled_out
from pagewire.frontend.cli.main import run
from pagewire.frontend.cli.speculative import with_speculation
from pagewire.frontend.cli.values import JsonObject
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.speculative_config import SpeculativeConfig

NGRAM = SpeculativeConfig(speculative_method="ngram", num_speculative_tokens=3)


def build(**given: object) -> SpeculativeConfig:
    return build_engine_config(given).speculative


@pytest.mark.parametrize(
    "given",
    [
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 3, "model": null}'},
        {"speculative_config": {"model": "[ngram]", "num_speculative_tokens": 3}},
        {"speculative_config": {"method": "NGRAM"}, "num_speculative_tokens": 3},
        {"speculative_model": "[ngram]", "num_speculative_tokens": 3},
        {"speculative_method": "ngram", "num_speculative_tokens": 3},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}, "speculative_method": "ngram"},
    ],
)
def test_all_forms_say_the_same(given: dict[str, object]):
    assert build(**given) == NGRAM


def test_a_model_that_is_none_of_the_lookups_stays_one():
    assert with_speculation({"speculative_config": {"model": "org/small"}}) == {"speculative_model": "org/small"}


def test_where_one_bound_of_a_lookup_is_given_the_other_follows():
    longer = build(speculative_method="ngram", prompt_lookup_min=8)
    assert (longer.prompt_lookup_min, longer.prompt_lookup_max) == (8, 8)
    shorter = build(speculative_config={"method": "ngram", "prompt_lookup_max": 1})
    assert (shorter.prompt_lookup_min, shorter.prompt_lookup_max) == (1, 1)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"speculative_config": {"method": "eagle3", "model": "x"}}, "the method eagle3 is not supported"),
        ({"speculative_config": {"method": "magic"}}, "does not know the method 'magic'; choose from ngram, suffix"),
        ({"speculative_config": {"methd": "ngram"}}, "does not know the key methd; did you mean method?"),
        ({"speculative_config": {"colour": 1}}, "does not know the key colour; there are method, model"),
        ({"speculative_config": {"disable_by_batch_size": 4}}, "disable_by_batch_size is not taken"),
        ({"speculative_config": {"num_speculative_tokens": 4}}, "nothing says by whom"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": "4"}}, "--num-speculative-tokens"),
        ({"speculative_config": {}}, "says nothing"),
        ({"speculative_config": "{"}, "is no JSON"),
        ({"speculative_config": "[1]"}, "is no JSON object"),
        ({"speculative_config": {"method": "ngram"}, "speculative_method": "suffix"}, "give one of them"),
        ({"speculative_model": "[ngram]", "speculative_method": "suffix"}, "give one of them"),
        ({"prompt_lookup_max": 3}, "--prompt-lookup-max 3 is for --speculative-method ngram"),
        ({"speculative_method": "suffix", "prompt_lookup_max": 3}, "--prompt-lookup-max 3 is for"),
        ({"num_speculative_tokens": 3}, "nothing says by whom"),
    ],
)
def test_what_can_not_be_meant_is_refused_by_name(given: dict[str, object], part: str):
    with pytest.raises(ConfigError) as caught:
        build(**given)
    assert part in caught.value.message


def test_short_and_older_names_are_flags_too():
    names = {flag.field: FlagOption(flag).opts for flag in engine_flags()}
    assert "-sc" in names["speculative_config"]
    assert "--spec-method" in names["speculative_method"]
    assert "--spec-model" in names["speculative_model"]
    assert "--spec-tokens" in names["num_speculative_tokens"]
    assert "--ngram-prompt-lookup-max" in names["prompt_lookup_max"]
    assert "--ngram-prompt-lookup-min" in names["prompt_lookup_min"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--num-speculative-tokens", "4"],
        ["-sc", '{"method": "medusa"}'],
        ["-sc", "ngram"],
        ["--spec-method", "mtp"],
        ["--spec-method", "ngram", "--spec-tokens", "65"],
    ],
)
def test_the_command_line_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(["serve", *arguments]) == 2
    assert capsys.readouterr().err.startswith("pagewire: error: ")


def test_a_file_holds_it_as_a_mapping(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("speculative-config:\n  method: ngram\n  num_speculative_tokens: 3\n", encoding="utf-8")
    values = read_config_file(str(path), [FlagOption(flag) for flag in engine_flags()], {})
    text = JsonObject().convert(values["speculative_config"], None, None)
    assert build(speculative_config=text) == NGRAM
    path.write_text("spec-method: ngram\nspeculative-method: suffix\n", encoding="utf-8")
    with pytest.raises(click.UsageError, match="--speculative-method stands in it twice"):
        read_config_file(str(path), [FlagOption(flag) for flag in engine_flags()], {})


def test_it_can_be_handed_to_another_command():
    given = {"speculative_config": '{"method": "ngram"}'}
    assert spelled_out(engine_flags(), given) == ["--speculative-config", '{"method": "ngram"}']
