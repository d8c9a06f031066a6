from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers

from pagewire.checkpoint.tokenizer.gguf import derive_merges
from pagewire.checkpoint.tokenizer.gguf_splits import SPLIT_RULES
from pagewire.frontend.tokenizer.tokenizer import Tokenizer, load_tokenizer
from pagewire.ipc.errors import ConfigError
from tests.support.vocabularies import (
    CORPUS,
    byte_level_metadata,
    fuzz_strings,
    sentencepiece_metadata,
    train_byte_level,
    train_sentencepiece,
    write_gguf,
)

# The pre-tokenizers of the models' own tokenizer.json, as published.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "Hello world! Café déjà vu — 123 😊",
    "\ta\t\tb",
    "北京 東京",
    "1234567 12 1",
    "é e\u0301",
    "👨\u200d👩\u200d👧",
    "",
]


def split_words(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


REFERENCES = {
    "gpt-2": lambda: train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": lambda: train_byte_level(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
    # Granite's, as published: the digits by a rule, then GPT-2's pattern.
    "refact": lambda: train_byte_level(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
    "llama-bpe": lambda: train_byte_level(split_words(LLAMA3), ignore_merges=True),
    "qwen2": lambda: train_byte_level(split_words(QWEN2), normalizer=normalizers.NFC()),
    "tekken": lambda: train_byte_level(split_words(TEKKEN), ignore_merges=True),
}


def load(tmp_path: Path, metadata: dict[str, object]) -> Tokenizer:
    return load_tokenizer(write_gguf(tmp_path / "vocabulary.gguf", metadata))


FUZZ = [pytest.param(1000, id="1000"), pytest.param(10_000, id="10000", marks=pytest.mark.slow)]


@pytest.mark.parametrize("num_fuzzed", FUZZ)
@pytest.mark.parametrize("pre", REFERENCES)
def test_byte_level_vocabulary_encodes_as_its_tokenizer_json(pre: str, num_fuzzed: int, tmp_path: Path) -> None:
    reference = REFERENCES[pre]()
    tokenizer = load(tmp_path, byte_level_metadata(reference, pre) | {"tokenizer.ggml.add_bos_token": False})
    for text in [*TEXTS, *CORPUS, *fuzz_strings(seed=1, count=num_fuzzed)]:
        expected = reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=True) == expected, repr(text)


@pytest.mark.parametrize("num_fuzzed", FUZZ)
@pytest.mark.parametrize("adds_space", [True, False])
def test_sentencepiece_vocabulary_encodes_as_sentencepiece(adds_space: bool, num_fuzzed: int, tmp_path: Path) -> None:
    reference = train_sentencepiece(add_dummy_prefix=adds_space)
    metadata = sentencepiece_metadata(reference) | {"tokenizer.ggml.add_space_prefix": adds_space}
    tokenizer = load(tmp_path, metadata)
    for text in [*TEXTS, *CORPUS, *fuzz_strings(seed=2, count=num_fuzzed)]:
        if "<s>" in text:  # sentencepiece itself never finds control tokens in a text
            continue
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text), repr(text)


def test_sentencepiece_text_survives_encoding_and_decoding(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, sentencepiece_metadata(train_sentencepiece()))
    for text in [*TEXTS, *CORPUS, "  two leading spaces", *fuzz_strings(seed=3, count=500)]:
        plain = text.replace("▁", " ").replace("<s>", "")
        assert tokenizer.decode(tokenizer.encode(plain, add_special_tokens=True)) == plain


def test_no_space_grows_after_special_tokens(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, sentencepiece_metadata(train_sentencepiece()))
    text = "<s>A dog</s>the fox<s> one space"
    once = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False)
    twice = tokenizer.decode(tokenizer.encode(once, add_special_tokens=False), skip_special_tokens=False)
    assert once == twice == text


def test_text_after_a_special_token_begins_with_a_space_as_in_the_models_own_tokenizer(tmp_path: Path) -> None:
    processor = train_sentencepiece()
    tokenizer = load(tmp_path, sentencepiece_metadata(processor))
    assert tokenizer.encode("<s>the dog", add_special_tokens=False) == [
        processor.bos_id(),
        *processor.encode("the dog"),
    ]


def test_whole_tokens_of_phi3_take_the_whitespace_after_them_along(tmp_path: Path) -> None:
    """As in its tokenizer.json: the line breaks of its chat template are no tokens."""
    processor = train_sentencepiece()
    metadata = sentencepiece_metadata(processor)
    for name, value in (("tokens", "<|user|>"), ("scores", -1000.0), ("token_type", 3)):
        metadata[f"tokenizer.ggml.{name}"] = [*metadata[f"tokenizer.ggml.{name}"], value]  # type: ignore[misc]  # lists
    phi3 = load_tokenizer(write_gguf(tmp_path / "phi3.gguf", metadata, "phi3"))
    ids = [processor.vocab_size(), *processor.encode("the dog")]
    for text in ("<|user|>the dog", "<|user|>\nthe dog", "<|user|> \n the dog"):
        assert phi3.encode(text, add_special_tokens=False) == ids
    kept = [processor.bos_id(), *processor.encode("\nthe dog")]
    assert phi3.encode("<s>\nthe dog", add_special_tokens=False) == kept
    llama = load(tmp_path, metadata)
    assert llama.encode("<|user|>\nthe dog", add_special_tokens=False) == [ids[0], *kept[1:]]


def test_special_tokens_are_found_whole_and_user_defined_ones_are_not_special(tmp_path: Path) -> None:
    metadata = byte_level_metadata(REFERENCES["smollm"](), "smollm")
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    tokens += ["<think>", "[PAD0]"]
    types += [4, 5]
    tokenizer = load(tmp_path, metadata)
    think = tokenizer.id_of("<think>")
    ids = tokenizer.encode("<|im_start|>dog<think>", add_special_tokens=False)
    assert ids[0] == tokenizer.bos_token_id
    assert ids[-1] == think
    assert tokenizer.special_token_ids == {0, 1, 2}
    assert tokenizer.decode(ids) == "dog<think>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>dog<think>"
    assert tokenizer.vocab_size == len(tokens)


@pytest.mark.parametrize(
    ("pre", "flags", "borders"),
    [
        ("smollm", {}, ([], [])),
        ("smollm", {"add_bos_token": True}, ([1], [])),
        ("smollm", {"add_bos_token": True, "add_eos_token": True}, ([1], [2])),
        ("llama-bpe", {}, ([1], [])),
        ("llama-bpe", {"add_bos_token": False}, ([], [])),
    ],
)
def test_begin_and_end_of_text_follow_the_flags_or_the_vocabularys_habit(
    pre: str, flags: dict[str, bool], borders: tuple[list[int], list[int]], tmp_path: Path
) -> None:
    metadata = byte_level_metadata(REFERENCES["smollm"](), pre) | {f"tokenizer.ggml.{k}": v for k, v in flags.items()}
    tokenizer = load(tmp_path, metadata)
    plain = tokenizer.encode("dog", add_special_tokens=False)
    assert tokenizer.encode("dog", add_special_tokens=True) == [*borders[0], *plain, *borders[1]]


def test_sentencepiece_adds_begin_of_text_unless_told_otherwise(tmp_path: Path) -> None:
    metadata = sentencepiece_metadata(train_sentencepiece())
    assert load(tmp_path, metadata).encode("dog", add_special_tokens=True)[0] == 1
    silent = load(tmp_path, metadata | {"tokenizer.ggml.add_bos_token": False})
    assert silent.encode("dog", add_special_tokens=True)[0] != 1


def test_chat_templates_are_read_by_name(tmp_path: Path) -> None:
    metadata = byte_level_metadata(REFERENCES["smollm"](), "smollm")
    tokenizer = load(tmp_path, metadata | {"tokenizer.chat_template": "A", "tokenizer.chat_template.tool_use": "B"})
    assert tokenizer.chat_template == "A"
    assert tokenizer.chat_templates == {"default": "A", "tool_use": "B"}
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def test_a_file_that_does_not_name_its_split_rule_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = byte_level_metadata(REFERENCES["gpt-2"](), "gpt-2")
    del metadata["tokenizer.ggml.pre"]
    load(tmp_path, metadata)
    assert "tokenizer.ggml.pre" in caplog.text


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokenizer.ggml.pre": "some-new-rule"}, "'some-new-rule'"),
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["x nosuchtoken"]}, "nosuchtoken"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "token_type has 2 entries"),
        ({"tokenizer.ggml.bos_token_id": 70_000}, "bos_token_id is 70000"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_refused_by_name(
    change: dict[str, object], named: str, tmp_path: Path
) -> None:
    metadata = byte_level_metadata(REFERENCES["gpt-2"](), "gpt-2") | change
    with pytest.raises(ConfigError, match=named):
        load(tmp_path, {key: value for key, value in metadata.items() if value is not None})


def test_every_split_rule_can_be_built() -> None:
    for rule in SPLIT_RULES.values():
        assert "".join(word for word, _ in rule.pre_tokenizer().pre_tokenize_str("a dog's 1234\n")) == "aĠdog'sĠ1234Ċ"


def test_merges_are_ranked_by_score_and_control_tokens_take_no_part() -> None:
    tokens = ["<s>", "a", "b", "ab", "aba", "aab", "<"]
    scores = [0.0, -10.0, -10.0, -1.0, -3.0, -2.0, -10.0]
    merges = derive_merges(tokens, scores, types=[3, 1, 1, 1, 1, 1, 1])
    assert merges == [("a", "b"), ("a", "ab"), ("ab", "a")]
