from __future__ import annotations

import pytest

from pagewire.engine_core.kv.sizing import fit_max_model_len
from pagewire.ipc.errors import ConfigError
from tests.support.builders import build_driver, build_request


def test_length_is_the_models_if_the_pool_holds_it():
    assert fit_max_model_len(None, 64, num_blocks=5, block_size=16) == 64


def test_length_is_lowered_to_what_the_pool_can_finish():
    assert fit_max_model_len(None, 2048, num_blocks=5, block_size=16) == 64


def test_explicit_length_beyond_the_pool_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"--max-model-len 256 .* up to 48 tokens; give at most 48, or raise"):
        fit_max_model_len(256, 2048, num_blocks=4, block_size=16)


def test_explicit_length_beyond_the_model_is_refused():
    with pytest.raises(ConfigError, match="more than the model's 2048 tokens"):
        fit_max_model_len(4096, 2048, num_blocks=1000, block_size=16)


def test_explicit_length_that_fits_is_kept():
    assert fit_max_model_len(48, 2048, num_blocks=4, block_size=16) == 48


@pytest.mark.parametrize("num_blocks", [0, 1, 2])
def test_pool_that_can_finish_nothing_is_refused(num_blocks):
    with pytest.raises(ConfigError, match="can't finish a request of 2 tokens"):
        fit_max_model_len(None, 2048, num_blocks=num_blocks, block_size=1)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("num_blocks", "block_size"), [(3, 1), (3, 2), (4, 4), (9, 1)])
@pytest.mark.parametrize("num_prompt_tokens", [1, 2, 3])
def test_request_of_the_fitted_length_finishes_alone_with_all_its_children(
    num_blocks, block_size, num_prompt_tokens, is_async
):
    max_model_len = fit_max_model_len(None, 100, num_blocks, block_size)
    driver = build_driver(
        num_blocks=num_blocks, block_size=block_size, max_model_len=max_model_len, is_async=is_async, budget=2
    )
    driver.add(build_request(1, range(min(num_prompt_tokens, max_model_len - 1)), n=3, max_tokens=None))
    driver.run()
    driver.check_complete(1)
