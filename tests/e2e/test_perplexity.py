"""What rounding activations to 8 bits costs the packaged model, on the start of the fixed text."""

from __future__ import annotations

import math

import pytest

from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing, load_library
from tools.perplexity import BASE_OPTIONS, TEXT, token_logprobs

NUM_TOKENS = 400
LIMIT = 0.01


@pytest.mark.slow
def test_compiled_kernels_lose_less_than_one_percent_of_perplexity() -> None:
    try:
        load_library()
    except LibraryMissing as exc:
        pytest.skip(str(exc))
    text = TEXT.read_text(encoding="utf-8")
    perplexities = []
    for options in (BASE_OPTIONS, {"kernels": "cpu"}):
        logprobs = token_logprobs("SmolLM2-135M-Instruct", text, NUM_TOKENS, {"max_model_len": 512, **options})
        assert len(logprobs) == NUM_TOKENS - 1
        perplexities.append(math.exp(-sum(logprobs) / len(logprobs)))
    base, tested = perplexities
    assert 10 < base < 60  # the text is ordinary English to the model
    assert tested < (1 + LIMIT) * base
