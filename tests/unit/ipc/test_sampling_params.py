from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.sampling_params import (
    INT64_MAX,
    INT64_MIN,
    MAX_BAD_WORD_CHARS,
    MAX_BAD_WORDS,
    MAX_N,
    MAX_STOP_STRINGS,
    MIN_TEMPERATURE,
    Sampling,
    SamplingParams,
    resolve_sampling,
)

EOS = [2, 3]


def resolve(*, seed: int = 7, **values: Any) -> Sampling:
    return resolve_sampling(SamplingParams(**values), seed=seed, eos_token_ids=EOS)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.0}, {"temperature": 2.0}, {"top_p": 1e-9}, {"top_p": 1.0}, {"top_k": -1}, {"top_k": 0},
        {"min_p": 0.0}, {"min_p": 1.0}, {"presence_penalty": -2.0}, {"frequency_penalty": 2.0},
        {"repetition_penalty": 1e-4}, {"repetition_penalty": 1e4}, {"seed": INT64_MIN}, {"seed": INT64_MAX},
        {"seed": -1}, {"max_tokens": 1}, {"max_tokens": None}, {"min_tokens": 16, "max_tokens": 16},
        {"min_tokens": 10**6, "max_tokens": None}, {"logprobs": 0}, {"logprobs": -1}, {"prompt_logprobs": 0},
        {"stop": "x"}, {"stop": ["x"] * MAX_STOP_STRINGS}, {"stop": []},
        {"bad_words": ["x" * MAX_BAD_WORD_CHARS] * MAX_BAD_WORDS},
        {"n": MAX_N}, {"logit_bias": {0: 1e30}}, {"allowed_token_ids": [0]}, {"detokenize": False},
    ],
)  # fmt: skip
def test_the_ends_of_each_range_are_inside(values: dict[str, Any]):
    SamplingParams(**values)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("n", 0), ("n", MAX_N + 1), ("n", -1),
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", math.nan), ("temperature", math.inf),
        ("top_p", 0.0), ("top_p", 1.1), ("top_p", math.nan), ("top_k", -2), ("top_k", 2**63),
        ("min_p", -0.1), ("min_p", 1.1), ("min_p", math.nan),
        ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("presence_penalty", math.nan),
        ("repetition_penalty", 0.0), ("repetition_penalty", -1.0), ("repetition_penalty", math.inf),
        ("seed", 2**63), ("seed", -(2**63) - 1), ("max_tokens", 0), ("max_tokens", 2**63),
        ("min_tokens", -1), ("min_tokens", 17), ("logprobs", -2), ("prompt_logprobs", -2),
        ("logit_bias", {1: math.nan}), ("logit_bias", {1: math.inf}), ("allowed_token_ids", []),
        ("stop", ""), ("stop", ["x", ""]), ("stop", ["x"] * (MAX_STOP_STRINGS + 1)),
        ("bad_words", [""]), ("bad_words", ["x"] * (MAX_BAD_WORDS + 1)),
        ("bad_words", ["x", "x" * (MAX_BAD_WORD_CHARS + 1)]),
    ],
)  # fmt: skip
def test_a_value_outside_its_range_is_refused_by_name(param: str, value: object):
    with pytest.raises(InvalidRequest, match=f"^{param} must be") as caught:
        SamplingParams(**{param: value})  # type: ignore[arg-type]
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("n", "3"), ("n", 1.5), ("temperature", "hot"), ("temperature", None), ("max_tokens", True), ("seed", 1.0),
        ("stop", 3), ("stop", [1]), ("bad_words", "x"), ("stop_token_ids", ["a"]), ("stop_token_ids", 5),
        ("stop_token_ids", [None]), ("allowed_token_ids", [1.5]), ("logit_bias", {"a": 1.0}),
        ("logit_bias", {1: "x"}), ("ignore_eos", 1), ("detokenize", None), ("logprobs", True),
        ("stop_token_ids", np.arange(3)),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_before_it_could_spoil_a_message(param: str, value: object):
    with pytest.raises(InvalidRequest, match=f"^{param} has a value of the wrong type") as caught:
        SamplingParams(**{param: value})  # type: ignore[arg-type]
    assert caught.value.param == param


def test_numpy_scalars_become_plain_numbers():
    params = SamplingParams(seed=np.int64(5), temperature=np.float32(0.5), top_k=np.int32(4))  # type: ignore[arg-type]
    assert [type(value) for value in (params.seed, params.temperature, params.top_k)] == [int, float, int]
    assert (params.seed, params.temperature, params.top_k) == (5, 0.5, 4)


def test_greedy_answers_are_all_alike_so_more_than_one_is_refused():
    with pytest.raises(InvalidRequest, match="n must be 1 with temperature 0"):
        SamplingParams(n=2, temperature=0.0)


def test_stop_strings_need_the_text():
    with pytest.raises(InvalidRequest, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)


def test_an_unknown_field_is_refused():
    with pytest.raises(msgspec.ValidationError, match="guided_json"):
        msgspec.convert({"guided_json": "{}"}, SamplingParams)


def test_a_single_stop_string_is_a_list_of_one():
    assert SamplingParams(stop="ab").stop_strings == ["ab"]
    assert SamplingParams(stop=["a", "b"]).stop_strings == ["a", "b"]
    assert SamplingParams().stop_strings == []


def test_greedy_turns_every_filter_off():
    sampling = resolve(temperature=1e-6, top_p=0.5, top_k=5, min_p=0.1)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 1.0, 0, 0.0)


def test_a_tiny_temperature_is_raised_so_that_logits_stay_finite():
    assert resolve(temperature=0.001).temperature == MIN_TEMPERATURE
    assert resolve(temperature=0.5).temperature == 0.5


@pytest.mark.parametrize(("asked", "drawn"), [(None, 7), (-1, 7), (0, 0), (-5, -5), (INT64_MAX, INT64_MAX)])
def test_the_seed_is_the_users_or_the_one_drawn_for_the_request(asked: int | None, drawn: int):
    assert resolve_sampling(SamplingParams(seed=asked), seed=7, eos_token_ids=EOS).seed == drawn


def test_min_tokens_masks_the_models_and_the_users_end_tokens():
    assert resolve(min_tokens=2, stop_token_ids=[9, 2]).end_token_ids == [2, 3, 9]
    assert resolve(min_tokens=2, stop_token_ids=[9], ignore_eos=True).end_token_ids == [9]
    assert resolve(min_tokens=0, stop_token_ids=[9]).end_token_ids == []


def test_biases_are_clamped_and_off_switches_are_one_value():
    sampling = resolve(logit_bias={5: 1e9, 6: -1e9, 7: 1.5}, top_k=-1)
    assert sampling.logit_bias == {5: 100, 6: -100, 7: 1.5}
    assert sampling.top_k == 0


@given(
    temperature=st.floats(0, 2), top_p=st.floats(0, 1, exclude_min=True), top_k=st.integers(-1, 10**6),
    min_p=st.floats(0, 1), seed=st.none() | st.integers(INT64_MIN, INT64_MAX),
)  # fmt: skip
def test_what_is_sent_is_what_is_received(**values: Any):
    sampling = resolve(**{name: value for name, value in values.items() if name != "seed"})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sampling), type=Sampling) == sampling
    params = SamplingParams(**values)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
