from __future__ import annotations

import pytest

from pagewire.ipc.outputs import FinishReason
from tests.support.builders import build_driver, build_request


@pytest.mark.parametrize("max_tokens", [None, 7, 10**15])
def test_output_is_clamped_to_the_context(max_tokens):
    driver = build_driver(max_model_len=16)
    driver.add(build_request(1, range(10), max_tokens=max_tokens))
    driver.run()
    assert len(driver[1].children[0].token_ids) == 6
    assert driver[1].children[0].finish_reason is FinishReason.LENGTH


def test_max_tokens_within_the_context_is_kept():
    driver = build_driver(max_model_len=16)
    driver.add(build_request(1, range(10), max_tokens=5))
    driver.run()
    assert len(driver[1].children[0].token_ids) == 5


def test_prompt_one_below_the_context_gives_one_token():
    driver = build_driver(max_model_len=16)
    driver.add(build_request(1, range(15), max_tokens=None))
    driver.run()
    assert len(driver[1].children[0].token_ids) == 1
    assert driver[1].children[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("length", [16, 17])
def test_prompt_of_the_context_or_beyond_is_refused_naming_both_lengths(length):
    driver = build_driver(max_model_len=16)
    driver.add(build_request(1, range(length)))
    end = driver[1].end
    assert end.is_refused
    assert end.error.kind == "ContextTooLong"
    assert "16 tokens" in end.error.message
    assert f"{length} input tokens" in end.error.message


def test_empty_prompt_is_refused_and_later_requests_are_fine():
    driver = build_driver()
    driver.add(build_request(1, []), build_request(2, [1]))
    driver.run()
    assert driver[1].end.is_refused
    driver.check_complete(2)


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_max_tokens_below_one_is_refused(max_tokens):
    driver = build_driver()
    driver.add(build_request(1, [1], max_tokens=max_tokens))
    assert driver[1].end.is_refused
    assert driver[1].end.error.param == "max_tokens"


@pytest.mark.parametrize("is_async", [False, True])
def test_one_token_ends_with_its_prefill(is_async):
    driver = build_driver(is_async=is_async)
    driver.add(build_request(1, range(5), n=3, max_tokens=1))
    driver.run()
    driver.check_complete(1)
    assert len(driver.steps) == 1
