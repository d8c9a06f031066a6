"""Text of one answer: wherever deltas cut its tokens, the text and its end are the same."""

from __future__ import annotations

import functools
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from pagewire.checkpoint.tokenizer.facts import TokenizerFacts
from pagewire.frontend.text.output import TextChunk, TextOutput
from pagewire.frontend.tokenizer.tokenizer import Tokenizer
from pagewire.ipc.outputs import FinishReason, TokenDelta, TokenLogprobs
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.vocabularies import train_byte_level

EOS = 0  # "<|endoftext|>", a special token


@functools.cache
def tokenizer(vocab_size: int = 259) -> Tokenizer:
    """259: a token a byte, so that every character beyond ASCII is spread over several."""
    return Tokenizer(
        train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), vocab_size=vocab_size), TokenizerFacts()
    )


def ids(text: str, vocab_size: int = 259) -> list[int]:
    return tokenizer(vocab_size).encode(text, add_special_tokens=False)


def run(
    token_ids: list[int],
    *,
    cuts: list[int] | None = None,
    reason: FinishReason = FinishReason.LENGTH,
    stop_reason: int | None = None,
    vocab_size: int = 259,
    **options: object,
) -> list[TextChunk]:
    """Push the tokens, one a delta or cut as said; the last delta brings the end."""
    output = TextOutput(tokenizer(vocab_size), [], SamplingParams(max_tokens=None, **options), index=3)
    borders = [0, *(range(1, len(token_ids)) if cuts is None else sorted(cuts)), len(token_ids)]
    chunks: list[TextChunk] = []
    for start, end in itertools.pairwise(borders):
        is_last = end == len(token_ids)
        piece = token_ids[start:end]
        chunks.append(
            output.push(
                TokenDelta(
                    request_id=1,
                    token_ids=piece,
                    logprobs=[TokenLogprobs(token, -1.0, 1) for token in piece],
                    finish_reason=reason if is_last else None,
                    stop_reason=stop_reason if is_last else None,
                )
            )
        )
        if chunks[-1].finish_reason is not None:
            break
    return chunks


def text_of(chunks: list[TextChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def end_of(chunks: list[TextChunk]) -> tuple[str | None, int | str | None, int]:
    return chunks[-1].finish_reason, chunks[-1].stop_reason, chunks[-1].num_output_tokens


def test_chunks_say_which_child_and_how_many_tokens():
    chunks = run(ids("ab"))
    assert [(chunk.index, chunk.text, len(chunk.token_ids), chunk.num_output_tokens) for chunk in chunks] == [
        (3, "a", 1, 1),
        (3, "b", 1, 2),
    ]


def test_split_character_is_sent_whole():
    chunks = run(ids("é😊"))
    assert [chunk.text for chunk in chunks] == ["", "é", "", "", "", "😊"]


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ABORT])
def test_open_character_is_replaced_at_the_end(reason):
    assert text_of(run(ids("aé")[:-1], reason=reason)) == "a\N{REPLACEMENT CHARACTER}"


def test_end_token_has_no_text_but_counts():
    chunks = run([*ids("ab"), EOS], reason=FinishReason.STOP)
    assert text_of(chunks) == "ab"
    assert end_of(chunks) == ("stop", None, 3)
    assert text_of(run([*ids("ab"), EOS], reason=FinishReason.STOP, skip_special_tokens=False)) == "ab"


def test_token_that_completes_a_grammar_has_its_text():
    output = TextOutput(tokenizer(), [], SamplingParams(), index=0)
    first, last = ids("{}")
    output.push(TokenDelta(request_id=1, token_ids=[first]))
    end = TokenDelta(request_id=1, token_ids=[last], finish_reason=FinishReason.STOP, ends_in_text=True)
    chunk = output.push(end)
    assert (chunk.text, chunk.finish_reason, chunk.stop_reason) == ("}", "stop", None)


def test_stop_token_is_shown_only_on_request():
    token = ids("b")[0]
    hidden = run(ids("ab"), reason=FinishReason.STOP, stop_reason=token)
    assert (text_of(hidden), end_of(hidden)) == ("a", ("stop", token, 2))
    shown = run(ids("ab"), reason=FinishReason.STOP, stop_reason=token, include_stop_str_in_output=True)
    assert (text_of(shown), end_of(shown)) == ("ab", ("stop", token, 2))


def test_nothing_that_may_become_a_stop_string_is_sent():
    chunks = run(ids("ABCDEFGHIJK"), stop="DEFGHIJ")
    assert text_of(chunks) == "ABC"
    assert end_of(chunks) == ("stop", "DEFGHIJ", 10)


@pytest.mark.parametrize(("include", "text"), [(False, "xy"), (True, "xyEND")])
def test_stop_string_within_a_token_cuts_it(include, text):
    vocab_size = 700
    token_ids = ids("xy", vocab_size) + ids("ENDLESS", vocab_size)
    chunks = run(token_ids, cuts=[], vocab_size=vocab_size, stop=["END"], include_stop_str_in_output=include)
    assert text_of(chunks) == text
    assert chunks[-1].stop_reason == "END"


def test_tokens_beyond_a_stop_string_are_dropped_with_their_logprobs():
    [chunk] = run(ids("ab!cdef"), cuts=[], stop="!")
    assert chunk.token_ids == ids("ab!")
    assert [entry.token_id for entry in chunk.logprobs] == ids("ab!")
    assert end_of([chunk]) == ("stop", "!", 3)


def test_stop_string_wins_over_the_length_that_its_token_reached():
    assert end_of(run(ids("ab!"), stop="!", reason=FinishReason.LENGTH)) == ("stop", "!", 3)


def test_stop_string_wins_over_a_stop_token_behind_it():
    chunks = run(ids("a!b"), cuts=[], stop="!", reason=FinishReason.STOP, stop_reason=ids("b")[0])
    assert end_of(chunks) == ("stop", "!", 2)


def test_held_back_text_is_sent_when_the_answer_ends_otherwise():
    chunks = run([*ids("abEN"), EOS], stop="END", reason=FinishReason.STOP)
    assert text_of(chunks) == "abEN"
    assert end_of(chunks) == ("stop", None, 5)


def test_stop_strings_count_only_after_min_tokens():
    chunks = run(ids("a!b!c"), stop="!", min_tokens=2)
    assert (text_of(chunks), end_of(chunks)) == ("a!b", ("stop", "!", 4))


def test_an_end_without_tokens_is_an_end():
    output = TextOutput(tokenizer(), [], SamplingParams(stop="EN"), index=0)
    output.push(TokenDelta(request_id=1, token_ids=ids("E")))
    chunk = output.push(TokenDelta(request_id=1, finish_reason=FinishReason.ABORT))
    assert (chunk.text, chunk.token_ids, chunk.finish_reason) == ("E", [], "abort")


def test_without_detokenization_there_are_ids_alone():
    chunks = run(ids("ab"), detokenize=False)
    assert text_of(chunks) == ""
    assert end_of(chunks) == ("length", None, 2)


@settings(max_examples=150, deadline=None)
@given(
    text=st.text("aE!é😊N", min_size=1, max_size=12),
    stops=st.lists(st.text("aE!é😊N", min_size=1, max_size=3), max_size=3),
    include=st.booleans(),
    min_tokens=st.integers(0, 6),
    seed=st.integers(0, 2**16),
)
def test_text_and_end_do_not_depend_on_how_deltas_are_cut(text, stops, include, min_tokens, seed):
    token_ids = ids(text)
    options = {"stop": stops, "include_stop_str_in_output": include, "min_tokens": min_tokens}
    rng = random.Random(seed)
    cuts = rng.sample(range(1, len(token_ids)), rng.randint(0, len(token_ids) - 1)) if len(token_ids) > 1 else []
    one_by_one, cut, whole = (run(token_ids, cuts=how, **options) for how in (None, cuts, []))
    assert text_of(one_by_one) == text_of(cut) == text_of(whole)
    assert end_of(one_by_one) == end_of(cut) == end_of(whole)
    if one_by_one[-1].finish_reason == "length":
        assert text_of(whole) == text
    assert "\N{REPLACEMENT CHARACTER}" not in text_of(whole)
