"""A vocabulary set up as Gemma's: SentencePiece without a space in front, turns as whole tokens, one begin of text."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.frontend.text.chat_template import ChatTemplate
from pagewire.frontend.tokenizer.tokenizer import Tokenizer, load_tokenizer
from pagewire.ipc.errors import InvalidRequest
from tests.support.vocabularies import (
    CORPUS,
    fuzz_strings,
    sentencepiece_metadata,
    train_sentencepiece,
    write_gguf,
)

# Turns of "user" and "model", which take turns; there is none of "system".
TEMPLATE = (
    "{{ bos_token }}"
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Not in turn') }}{% endif %}"
    "{% set role = 'model' if message.role == 'assistant' else message.role %}"
    "{{ '<start_of_turn>' + role + '\n' + message.content | trim + '<end_of_turn>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
CONTROL, USER_DEFINED = 3, 4
ADDED = {"<start_of_turn>": CONTROL, "<end_of_turn>": CONTROL, "\n\n": USER_DEFINED, "   ": USER_DEFINED}
USER = {"role": "user", "content": " the quick fox "}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    metadata = sentencepiece_metadata(train_sentencepiece(add_dummy_prefix=False))
    for name, values in (("tokens", list(ADDED)), ("scores", [-1000.0] * len(ADDED)), ("token_type", ADDED.values())):
        metadata[f"tokenizer.ggml.{name}"] = [*metadata[f"tokenizer.ggml.{name}"], *values]  # type: ignore[misc]  # lists
    metadata |= {
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    return load_tokenizer(write_gguf(tmp_path / "gemma.gguf", metadata, "gemma3"))


def test_text_gets_one_begin_and_no_space(tokenizer: Tokenizer) -> None:
    plain = train_sentencepiece(add_dummy_prefix=False).encode("the dog")
    assert tokenizer.encode("the dog", add_special_tokens=True) == [tokenizer.bos_token_id, *plain]
    assert tokenizer.encode("the dog", add_special_tokens=False) == plain
    assert tokenizer.decode(plain) == "the dog"


def test_chat_is_turns_of_whole_tokens_after_one_begin(tokenizer: Tokenizer) -> None:
    special_tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    text = ChatTemplate(TEMPLATE, special_tokens=special_tokens).render([USER], add_generation_prompt=True)
    encode = train_sentencepiece(add_dummy_prefix=False).encode
    start, end = tokenizer.id_of("<start_of_turn>"), tokenizer.id_of("<end_of_turn>")
    assert tokenizer.encode(text, add_special_tokens=False) == [
        *(tokenizer.bos_token_id, start), *encode("user\nthe quick fox"), end, *encode("\n"), start, *encode("model\n")
    ]  # fmt: skip
    assert {start, end} <= tokenizer.special_token_ids


def test_system_message_is_refused_in_the_templates_own_words() -> None:
    with pytest.raises(InvalidRequest, match="System role not supported"):
        ChatTemplate(TEMPLATE, special_tokens={"bos_token": "<s>"}).render([{"role": "system", "content": "Be kind."}])


def test_runs_of_whitespace_are_tokens_and_text_survives(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a\n\nb   c", add_special_tokens=False)
    assert {tokenizer.id_of("\n\n"), tokenizer.id_of("   ")} <= set(ids)
    for text in [*CORPUS, " one space in front", "\n\n   \n", *fuzz_strings(seed=4, count=300)]:
        plain = text.replace("▁", " ").replace("<s>", "")
        assert tokenizer.decode(tokenizer.encode(plain, add_special_tokens=True)) == plain
