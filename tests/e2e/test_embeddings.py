"""Vectors over HTTP and offline are those of `transformers` on the same weights."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch

from pagewire.frontend.offline.llm import LLM
from tests.support.running_server import RunningServer
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

PROMPTS = [[11], [12, 13, 14], [21 + index % 90 for index in range(75)]]


@pytest.fixture(scope="module")
def expected() -> dict[str, list[np.ndarray]]:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModel.from_pretrained(tiny_checkpoint("llama"), dtype=torch.float32)
    with torch.inference_mode():
        states = [model(torch.tensor([prompt])).last_hidden_state[0].double().numpy() for prompt in PROMPTS]
    vectors = {"last": [each[-1] for each in states], "mean": [each.mean(0) for each in states]}
    return {pooling: [each / np.linalg.norm(each) for each in of_pooling] for pooling, of_pooling in vectors.items()}


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vectors_of_a_server_are_right_in_either_encoding(tiny: RunningServer, expected, pooling: str):
    body = {"model": "tiny", "input": PROMPTS, "pooling": pooling}
    as_floats = tiny.post("/v1/embeddings", body)
    as_base64 = tiny.post("/v1/embeddings", {**body, "encoding_format": "base64"})
    for data, encoded, vector in zip(as_floats["data"], as_base64["data"], expected[pooling], strict=True):
        ours = np.array(data["embedding"])
        assert ours @ vector > 0.9999
        assert np.frombuffer(base64.b64decode(encoded["embedding"]), dtype="<f4").tolist() == data["embedding"]
    assert as_floats["usage"]["total_tokens"] == sum(map(len, PROMPTS))


def test_an_offline_engine_gives_them_and_sleeps_in_between(expected):
    with LLM(str(tiny_checkpoint("llama"))) as llm:
        prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
        before = llm.embed(prompts, use_tqdm=False)
        llm.sleep()
        assert llm.is_sleeping()
        llm.wake_up()
        after = llm.embed(prompts, use_tqdm=False)
    assert [each.outputs for each in before] == [each.outputs for each in after]
    for output, vector in zip(after, expected["last"], strict=True):
        assert np.array(output.outputs.embedding) @ vector > 0.9999
