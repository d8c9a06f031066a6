"""`LLM.beam_search` against the beam search of transformers, on a tiny random checkpoint."""

from __future__ import annotations

import pytest
import torch
import transformers

from pagewire.frontend.offline.llm import LLM
from pagewire.frontend.text.beam_search import BeamSearchParams
from pagewire.ipc.errors import InvalidRequest
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

# The longer one fills two blocks and begins a third: steps go on from cached blocks.
PROMPTS = [[5, 6, 7, 8], [9, 3, 17, *range(40, 72)]]


@pytest.fixture(scope="module")
def llm():
    options = {"max_model_len": 128, "max_num_seqs": 16, "kv_cache_memory_bytes": 2**22, "log_level": "warning"}
    with LLM(
        str(tiny_checkpoint("llama", vocab_size=500)), dtype="float32", kv_cache_dtype="float32", **options
    ) as llm:
        yield llm


@pytest.mark.parametrize("width", [1, 2, 4])
def test_answers_are_those_of_transformers(llm: LLM, width: int):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_checkpoint("llama", vocab_size=500), dtype=torch.float32
    ).eval()
    outputs = llm.beam_search(
        [{"prompt_token_ids": prompt} for prompt in PROMPTS],
        BeamSearchParams(beam_width=width, max_tokens=10, ignore_eos=True),
    )
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        expected = model.generate(
            torch.tensor([prompt]), num_beams=width, num_return_sequences=width, do_sample=False, max_new_tokens=10,
            eos_token_id=None, pad_token_id=0, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        assert [sequence.tokens for sequence in output.sequences] == expected.sequences.tolist()
        if width > 1:
            sums = (expected.sequences_scores * 10).tolist()
            assert [sequence.cum_logprob for sequence in output.sequences] == pytest.approx(sums, abs=1e-3)
        assert {sequence.finish_reason for sequence in output.sequences} == {"length"}


def test_prompts_are_searched_alike_together_and_one_by_one(llm: LLM):
    params = BeamSearchParams(beam_width=3, max_tokens=6)
    prompts = ["The capital of", [7, 8, 9], {"prompt": "a"}]
    together = llm.beam_search(prompts, params)
    assert llm.beam_search(prompts, params, concurrency_limit=1) == together
    assert [llm.beam_search(prompt, params)[0] for prompt in prompts] == together


def test_answers_end_where_the_context_does(llm: LLM):
    (output,) = llm.beam_search({"prompt_token_ids": [5] * 124}, BeamSearchParams(beam_width=2, max_tokens=50))
    assert [len(sequence.logprobs) for sequence in output.sequences] == [4, 4]


def test_width_beyond_the_engines_logprobs_is_refused_with_the_remedy(llm: LLM):
    with pytest.raises(InvalidRequest, match=r"Prompt 0: .*--max-logprobs 22"):
        llm.beam_search(["a", "b"], BeamSearchParams(beam_width=11))
