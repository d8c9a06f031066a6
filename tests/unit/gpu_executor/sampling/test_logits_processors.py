"""Each processor against its formula, on the tokens that it is defined over."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch

from pagewire.gpu_executor.sampling.logits_processors import LOGITS_PROCESSORS, edits_of, make_processors
from pagewire.gpu_executor.sampling.row_edits import TokenHistory, apply_edits
from pagewire.ipc.sampling_params import Sampling

VOCAB_SIZE = 12


def processed(prompt, output, logits=None, **options):
    row = torch.linspace(-3, 3, VOCAB_SIZE) if logits is None else torch.tensor(logits)
    history = TokenHistory(np.array([*prompt, *output], dtype=np.int32), len(prompt))
    apply_edits(row, edits_of(make_processors(Sampling(**options), VOCAB_SIZE), history), history)
    return row


def masked(row):
    return [index for index, value in enumerate(row.tolist()) if value == -math.inf]


def test_every_sampling_field_is_read_by_one_processor_or_by_the_draw():
    read = [name for processor in LOGITS_PROCESSORS for name in processor.arguments]
    drawn = ["temperature", "seed", "top_p", "top_k", "min_p", "num_logprobs", "num_prompt_logprobs"]
    assert sorted(read + drawn) == sorted(field.name for field in msgspec.structs.fields(Sampling))


def test_default_parameters_make_no_processor():
    assert make_processors(Sampling(), VOCAB_SIZE) == ()


def test_allowed_tokens_mask_all_others():
    row = processed([1], [], allowed_token_ids=[3, 5])
    assert masked(row) == [i for i in range(VOCAB_SIZE) if i not in (3, 5)]
    assert row[[3, 5]].tolist() == torch.linspace(-3, 3, VOCAB_SIZE)[[3, 5]].tolist()


def test_single_bad_word_is_always_masked_and_a_sequence_only_when_it_would_be_completed():
    bad_words = [[4], [7, 8, 9]]
    assert masked(processed([1], [7], bad_words_token_ids=bad_words)) == [4]
    assert masked(processed([1], [7, 8], bad_words_token_ids=bad_words)) == [4, 9]
    assert masked(processed([1], [7, 8, 1], bad_words_token_ids=bad_words)) == [4]


def test_bad_word_that_begins_in_the_prompt_is_not_one_of_the_output():
    assert masked(processed([7, 8], [], bad_words_token_ids=[[7, 8, 9]])) == []


def test_end_tokens_are_masked_until_min_tokens_are_there():
    options = {"min_tokens": 2, "end_token_ids": [0, 2]}
    assert masked(processed([1, 1, 1], [], **options)) == [0, 2]
    assert masked(processed([1, 1, 1], [5], **options)) == [0, 2]
    assert masked(processed([1, 1, 1], [5, 6], **options)) == []


def test_logit_bias_is_added_to_its_tokens_alone():
    plain = torch.linspace(-3, 3, VOCAB_SIZE)
    row = processed([1], [], logit_bias={2: 100.0, 9: -1.5})
    plain[2] += 100
    plain[9] -= 1.5
    assert torch.equal(row, plain)


def test_bias_does_not_bring_a_masked_token_back():
    row = processed([1], [], allowed_token_ids=[3], logit_bias={4: 100.0})
    assert masked(row) == [i for i in range(VOCAB_SIZE) if i != 3]


def test_repetition_penalty_covers_prompt_and_output():
    row = processed([11, 11, 0], [6], repetition_penalty=2.0)
    plain = torch.linspace(-3, 3, VOCAB_SIZE)
    for token_id in (11, 0, 6):  # positive logits are divided, negative ones multiplied, however often it occurred
        plain[token_id] = plain[token_id] / 2 if plain[token_id] > 0 else plain[token_id] * 2
    assert torch.equal(row, plain)


@pytest.mark.parametrize(("name", "first", "second"), [("frequency_penalty", 1.5, 0.5), ("presence_penalty", 0.5, 0.5)])
def test_frequency_and_presence_penalties_cover_the_output_only(name, first, second):
    row = processed([5, 5, 5], [8, 2, 8, 8], **{name: 0.5})
    plain = torch.linspace(-3, 3, VOCAB_SIZE)
    plain[8] -= first
    plain[2] -= second
    assert torch.equal(row, plain)


def test_penalties_of_the_first_output_token_see_the_prompt_as_the_formula_says():
    assert torch.equal(
        processed([5, 5], [], frequency_penalty=2.0, presence_penalty=2.0), torch.linspace(-3, 3, VOCAB_SIZE)
    )
    assert processed([5, 5], [], repetition_penalty=3.0)[5] == torch.linspace(-3, 3, VOCAB_SIZE)[5] * 3


def test_ids_of_the_padding_are_left_out():
    row = processed(
        [15],
        [],
        allowed_token_ids=[3, 14],
        bad_words_token_ids=[[13]],
        min_tokens=1,
        end_token_ids=[12],
        logit_bias={14: 5.0},
        repetition_penalty=2.0,
    )
    assert masked(row) == [i for i in range(VOCAB_SIZE) if i != 3]
