"""The library sees the tokens that the frontend shows, and cuts text as the tokenizer does."""

from __future__ import annotations

import pytest

from pagewire.checkpoint.tokenizer.load import count_ids, read_tokenizer
from pagewire.engine_core.grammar.vocabulary import load_vocabulary, make_vocabulary
from pagewire.engine_core.grammar.vocabulary_source import VocabularySource
from pagewire.ipc.errors import InvalidRequest
from tests.support.tiny_model import tiny_checkpoint


def test_vocabulary_of_a_checkpoint_spells_and_cuts_like_its_tokenizer():
    path = tiny_checkpoint("llama")
    backend, _ = read_tokenizer(path)
    num_ids = count_ids(backend)
    vocabulary = load_vocabulary(
        VocabularySource(model_path=str(path), vocab_size=num_ids + 3, eos_token_ids=(0, num_ids - 1, num_ids + 7))
    )
    text = 'Some {"text": 1}'
    assert vocabulary.vocab_size == num_ids + 3
    assert set(vocabulary.eos_tokens) == {0, num_ids - 1}
    cut = vocabulary.tokenize_str(text)
    assert vocabulary.decode_bytes(cut) == text.encode()
    assert cut == backend.encode(text, add_special_tokens=False).ids


def test_model_without_end_tokens_ends_by_an_id_that_nobody_draws():
    vocabulary = make_vocabulary([b"a", b"b"], [], [])
    assert vocabulary.eos_tokens == [2]


def test_text_without_a_tokenizer_is_cut_into_the_longest_tokens():
    vocabulary = make_vocabulary([b"a", b"b", b"ab", b"\xff<eos>"], [3], [3])
    assert vocabulary.tokenize_str("abba") == [2, 1, 0]


def test_unreadable_tokenizer_is_a_refusal(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="vocabulary can't be constrained"):
        load_vocabulary(VocabularySource(model_path=str(tmp_path), vocab_size=10))
