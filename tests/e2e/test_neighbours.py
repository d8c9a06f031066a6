"""Requests that ask for what can't be: each gets its own 4xx, and the one that decodes beside them notices nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pagewire.checkpoint.loading import load_model_config
from tests.support.running_server import RunningServer
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

END_TOKEN = 2


@pytest.fixture(scope="module")
def refused() -> list[dict[str, Any]]:
    """Bodies with ids that the tokenizer lacks, some of them rows of the embedding, or with nothing left to draw."""
    config = load_model_config(tiny_checkpoint())
    padding, beyond = config.tokenizer_size, config.vocab_size + 10
    assert padding < config.vocab_size
    bodies: list[dict[str, Any]] = []
    for token_id in (padding, beyond, -1, 10**18):
        bodies += [
            {"prompt": [5, token_id]},
            {"stop_token_ids": [token_id], "min_tokens": 1},
            {"allowed_token_ids": [5, token_id]},
            {"logit_bias": {str(token_id): 100}},
        ]
    return [
        *bodies,
        {"allowed_token_ids": []},
        {"allowed_token_ids": [END_TOKEN], "min_tokens": 1},
        {"allowed_token_ids": [40], "stop_token_ids": [40], "min_tokens": 2},
    ]


@pytest.mark.parametrize("temperature", [0, 1])
def test_refused_requests_leave_the_one_beside_them_alone(
    tiny: RunningServer, refused: list[dict[str, Any]], temperature: float
) -> None:
    body = {
        "prompt": [21, 22, 23],
        "max_tokens": 200,
        "temperature": temperature,
        "seed": 4,
        "ignore_eos": True,
        "return_token_ids": True,
        "logprobs": 1,
    }
    alone = tiny.post("/v1/completions", body)["choices"][0]
    with ThreadPoolExecutor(4) as pool:
        beside = pool.submit(tiny.post, "/v1/completions", body)
        answers = list(pool.map(lambda wrong: tiny.post("/v1/completions", {"prompt": [5], **wrong}), refused))
        assert beside.result()["choices"][0] == alone
    for wrong, answer in zip(refused, answers, strict=True):
        assert isinstance(answer, tuple), f"{wrong} was answered by {answer}"
        status, document = answer
        assert (status, document["error"]["type"]) == (400, "invalid_request_error"), wrong
