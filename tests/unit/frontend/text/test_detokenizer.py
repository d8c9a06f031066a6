from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pagewire.checkpoint.tokenizer.facts import TokenizerFacts
from pagewire.frontend.text.detokenizer import Detokenizer
from pagewire.frontend.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.support.vocabularies import (
    CORPUS,
    cuts,
    fuzz_strings,
    save_directory,
    sentencepiece_metadata,
    train_byte_level,
    train_sentencepiece,
    write_gguf,
)

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
KINDS = ["byte_level", "sentencepiece", "sentencepiece_bare", "wordpiece"]


@pytest.fixture(scope="module")
def tokenizers_by_kind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("vocabularies")
    byte_level = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    byte_level.add_tokens([AddedToken("<tool>", special=False), AddedToken(" odd token", special=False)])
    metadata = sentencepiece_metadata(train_sentencepiece())
    return {
        "byte_level": load_tokenizer(save_directory(folder / "byte_level", byte_level)),
        "sentencepiece": load_tokenizer(write_gguf(folder / "a.gguf", metadata)),
        "sentencepiece_bare": load_tokenizer(
            write_gguf(folder / "b.gguf", metadata | {"tokenizer.ggml.add_space_prefix": False})
        ),
        "wordpiece": wordpiece(),
    }


def wordpiece() -> Tokenizer:
    words = ["[UNK]", "the", "dog", "##s", "##gy", ",", "un", "##do", REPLACEMENT]
    backend = Backend(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece(cleanup=False)
    backend.add_special_tokens(["[UNK]", "[SEP]"])
    return Tokenizer(backend, TokenizerFacts())


def stream(detokenizer: Detokenizer, runs: list[list[int]]) -> str:
    return "".join([*[detokenizer.push(run) for run in runs], detokenizer.finish()])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [True, False])
def test_any_cut_of_any_ids_gives_the_whole_text(
    kind: str, skip: bool, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    tokenizer = tokenizers_by_kind[kind]
    rng = random.Random(kind)
    for _ in range(1500):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randint(0, 25))]
        detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
        text = stream(detokenizer, cuts(rng, ids))
        assert text == tokenizer.decode(ids, skip_special_tokens=skip)
        assert detokenizer.text_length == len(text)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "sentencepiece_bare"])
def test_no_replacement_character_appears_within_valid_text(
    kind: str, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    tokenizer = tokenizers_by_kind[kind]
    for text in [*CORPUS, *fuzz_strings(seed=4, count=500)]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
        deltas = [detokenizer.push([token_id]) for token_id in ids]
        assert REPLACEMENT not in "".join(deltas)
        assert detokenizer.finish() == ""
        assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "sentencepiece_bare"])
def test_long_text_of_split_characters_is_whole_in_every_cut(
    kind: str, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    tokenizer = tokenizers_by_kind[kind]
    text = "서울은 대한민국의 수도이며, 한강을 끼고 있다. 東京は日本の首都です。北京是首都 👨\u200d👩\u200d👧. " * 4
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) > len(text)  # most characters are of several tokens
    rng = random.Random(kind)
    for _ in range(50):
        detokenizer = Detokenizer(tokenizer)
        deltas = [detokenizer.push(run) for run in cuts(rng, ids)]
        assert detokenizer.finish() == ""
        assert "".join(deltas) == text == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_prompt_the_output_is_what_it_adds_to_the_prompt(
    kind: str, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    tokenizer = tokenizers_by_kind[kind]
    rng = random.Random(kind)
    for _ in range(500):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(12)]
        prompt, output = ids[:6], ids[6:]
        before, whole = tokenizer.decode(prompt), tokenizer.decode(ids)
        if REPLACEMENT in whole or not whole.startswith(before):
            continue
        assert stream(Detokenizer(tokenizer, prompt), cuts(rng, output)) == whole[len(before) :]


def test_sentencepiece_keeps_the_space_between_prompt_and_output(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers_by_kind["sentencepiece"]
    dog = tokenizer.encode("dog", add_special_tokens=False)
    assert stream(Detokenizer(tokenizer, dog), [dog]) == " dog"
    assert stream(Detokenizer(tokenizer), [dog]) == "dog"
    assert stream(Detokenizer(tokenizer, [tokenizer.bos_token_id]), [dog]) == "dog"


@pytest.fixture
def byte_ids(tokenizers_by_kind: dict[str, Tokenizer]) -> Callable[[bytes], list[int]]:
    tokenizer = tokenizers_by_kind["byte_level"]
    by_bytes = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size - 2)}
    return lambda data: [by_bytes[bytes([byte])] for byte in data]


def test_half_a_character_waits_and_becomes_a_replacement_at_the_end(
    tokenizers_by_kind: dict[str, Tokenizer], byte_ids: Callable[[bytes], list[int]]
) -> None:
    detokenizer = Detokenizer(tokenizers_by_kind["byte_level"])
    assert [detokenizer.push([token_id]) for token_id in byte_ids("ď".encode())] == ["", "ď"]
    assert [detokenizer.push([token_id]) for token_id in byte_ids(b"\xf0\x9f")] == ["", ""]
    assert detokenizer.finish() == REPLACEMENT


def test_end_of_text_token_after_half_a_character_changes_nothing(
    tokenizers_by_kind: dict[str, Tokenizer], byte_ids: Callable[[bytes], list[int]]
) -> None:
    tokenizer = tokenizers_by_kind["byte_level"]
    ids = [*byte_ids(b"\xc4"), tokenizer.id_of("<|im_end|>")]
    assert stream(Detokenizer(tokenizer), [[token_id] for token_id in ids]) == tokenizer.decode(ids) == REPLACEMENT


def test_genuine_replacement_character_at_the_end_is_text(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    for kind in KINDS:
        tokenizer = tokenizers_by_kind[kind]
        ids = tokenizer.encode(REPLACEMENT, add_special_tokens=False)
        assert stream(Detokenizer(tokenizer), [[token_id] for token_id in ids]) == REPLACEMENT


def test_invalid_bytes_are_replaced_at_once_and_the_next_text_is_whole(
    tokenizers_by_kind: dict[str, Tokenizer], byte_ids: Callable[[bytes], list[int]]
) -> None:
    detokenizer = Detokenizer(tokenizers_by_kind["byte_level"])
    deltas = [detokenizer.push([token_id]) for token_id in byte_ids(b"\xff\xe4\xbdA\x80")]
    assert deltas == [REPLACEMENT, "", "", REPLACEMENT + "A", REPLACEMENT]


def test_character_begun_by_the_prompt_is_completed_but_its_lone_half_is_no_output(
    tokenizers_by_kind: dict[str, Tokenizer], byte_ids: Callable[[bytes], list[int]]
) -> None:
    tokenizer = tokenizers_by_kind["byte_level"]
    prompt = byte_ids(b"a\xc4")
    assert stream(Detokenizer(tokenizer, prompt), [byte_ids(b"\x8f")]) == "ď"
    assert stream(Detokenizer(tokenizer, prompt), [byte_ids(b"b")]) == "b"
    assert stream(Detokenizer(tokenizer, prompt), []) == ""


def test_text_length_before_a_token_is_its_text_offset(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers_by_kind["byte_level"]
    ids = tokenizer.encode("The quick brown fox", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer)
    for token_id in ids:
        offset = detokenizer.text_length
        assert "The quick brown fox".startswith(detokenizer.push([token_id]), offset)


def test_decoder_that_joins_by_spaces_leaves_them_out_between_added_tokens_on_request() -> None:
    tokenizer = wordpiece()
    sep, dog = tokenizer.id_of("[SEP]"), tokenizer.id_of("dog")
    ids = [dog, sep, sep, dog]
    for spaces, text in ((True, "dog [SEP] [SEP] dog"), (False, "dog [SEP][SEP] dog")):
        options = {"skip_special_tokens": False, "spaces_between_special_tokens": spaces}
        assert tokenizer.decode(ids, **options) == text
        assert stream(Detokenizer(tokenizer, **options), [[token_id] for token_id in ids]) == text
