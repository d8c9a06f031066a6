from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizers import AddedToken, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from pagewire.checkpoint.tokenizer import directory as tokenizer_directory
from pagewire.checkpoint.tokenizer.gguf import read_gguf
from pagewire.frontend.tokenizer.tokenizer import Tokenizer, load_tokenizer
from pagewire.ipc.errors import ConfigError, InvalidRequest
from tests.support.vocabularies import (
    CORPUS,
    fuzz_strings,
    save_directory,
    sentencepiece_metadata,
    train_byte_level,
    train_sentencepiece,
    write_gguf,
)

CONFIG = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "pad_token": None}


def backend(**options: object) -> Backend:
    return train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), **options)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_directory(tmp_path_factory.mktemp("model") / "hf", backend(), CONFIG)


@pytest.fixture
def tokenizer(model_dir: Path) -> Tokenizer:
    return load_tokenizer(model_dir)


def test_directory_encodes_and_decodes_as_the_tokenizers_library(tokenizer: Tokenizer, model_dir: Path) -> None:
    reference = Backend.from_file(str(model_dir / "tokenizer.json"))
    rng = random.Random(0)
    for text in [*CORPUS, *fuzz_strings(seed=1, count=1000)]:
        ids = tokenizer.encode(text, add_special_tokens=True)
        assert ids == reference.encode(text).ids
        shuffled = rng.sample(ids, len(ids))
        for skip in (True, False):
            assert tokenizer.decode(shuffled, skip_special_tokens=skip) == reference.decode(
                shuffled, skip_special_tokens=skip
            )


@pytest.fixture
def sentencepiece_dir(tmp_path: Path) -> Path:
    gguf = write_gguf(tmp_path / "model.gguf", sentencepiece_metadata(train_sentencepiece()))
    return save_directory(tmp_path / "hf", read_gguf(gguf)[0])


def test_sentencepiece_directory_decodes_as_the_tokenizers_library(sentencepiece_dir: Path) -> None:
    tokenizer = load_tokenizer(sentencepiece_dir)
    reference = Backend.from_file(str(sentencepiece_dir / "tokenizer.json"))
    rng = random.Random(0)
    num_compared = 0
    for _ in range(2000):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(6)]
        skip = rng.random() < 0.5
        text = tokenizer.decode(ids, skip_special_tokens=skip)
        if "\N{REPLACEMENT CHARACTER}" not in text:
            num_compared += 1
            assert text == reference.decode(ids, skip_special_tokens=skip)
    assert num_compared > 200


def test_whole_characters_survive_beside_invalid_bytes(sentencepiece_dir: Path) -> None:
    tokenizer = load_tokenizer(sentencepiece_dir)
    ids = [tokenizer.id_of(f"<0x{byte:02X}>") for byte in "ď".encode() + b"\xff"]
    assert tokenizer.decode(ids) == "ď\N{REPLACEMENT CHARACTER}"


def test_facts_of_the_configuration(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<|im_start|>", 1)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert tokenizer.special_token_ids == {0, 1, 2}
    assert tokenizer.vocab_size == 600
    assert tokenizer.chat_template is None
    assert tokenizer.id_of("nothing spelled so") is None


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("spaces", [True, False])
def test_no_spaces_are_invented_around_added_tokens(skip: bool, spaces: bool, tmp_path: Path) -> None:
    reference = backend()
    reference.add_tokens([AddedToken("<tool>", special=False)])
    tokenizer = load_tokenizer(save_directory(tmp_path / "model", reference))
    ids = tokenizer.encode("word<tool>word<|im_end|><tool><tool> word", add_special_tokens=False)
    text = tokenizer.decode(ids, skip_special_tokens=skip, spaces_between_special_tokens=spaces)
    assert text == reference.decode(ids, skip_special_tokens=skip)
    assert text == f"word<tool>word{'' if skip else '<|im_end|>'}<tool><tool> word"


@pytest.mark.parametrize("text", ["<|im_start|>user\n", "<|endoftext|>text", "<|im_start|> text <|im_end|>\n"])
def test_text_with_special_tokens_is_unchanged_by_encoding_and_decoding(text: str, tokenizer: Tokenizer) -> None:
    for _ in range(2):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_bytes_of_the_tokens_join_to_the_bytes_of_the_text(tokenizer: Tokenizer) -> None:
    for text in CORPUS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_one_token_is_shown_with_its_space_and_spelled_as_in_the_vocabulary(tokenizer: Tokenizer) -> None:
    token_id = tokenizer.encode("a dog", add_special_tokens=False)[1]
    assert tokenizer.token_text(token_id) == tokenizer.token_spelling(token_id).replace("Ġ", " ")
    assert tokenizer.token_text(token_id).startswith(" ")


def test_half_a_character_is_shown_as_a_replacement_but_its_bytes_are_exact(tokenizer: Tokenizer) -> None:
    token_id = tokenizer.encode("\U0001f9ff", add_special_tokens=False)[0]
    assert tokenizer.token_bytes(token_id) == b"\xf0\x9f"
    assert tokenizer.token_text(token_id) == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("text", ["\ud800", "fine \udfff not", "\U0001f600\ud83d"])
def test_lone_surrogate_is_refused_by_its_place(text: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match=r"lone surrogate \(U\+D[89A-F]\w\w at character \d"):
        tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("token_id", [-1, 600, 2**31, 2**70])
def test_ids_outside_the_vocabulary_are_refused(token_id: int, tokenizer: Tokenizer) -> None:
    for use in (lambda: tokenizer.decode([5, token_id]), lambda: tokenizer.token_bytes(token_id)):
        with pytest.raises(InvalidRequest, match=f"token id {token_id} is not in the vocabulary: ids are 0 to 599"):
            use()


async def test_encoding_beside_the_event_loop_gives_the_same_ids(tokenizer: Tokenizer) -> None:
    texts = ["short", "long " * 1000, ""]
    results = await asyncio.gather(*[tokenizer.encode_async(text, add_special_tokens=True) for text in texts])
    assert results == [tokenizer.encode(text, add_special_tokens=True) for text in texts]
    with pytest.raises(InvalidRequest):
        await tokenizer.encode_async("\ud800" * 1000, add_special_tokens=True)
    tokenizer.close()


async def test_long_text_leaves_the_interpreter_to_others(tokenizer: Tokenizer) -> None:
    encoding = asyncio.create_task(tokenizer.encode_async("some words " * 60_000, add_special_tokens=False))
    started = last = time.perf_counter()
    longest_s = 0.0
    while not encoding.done():
        await asyncio.sleep(0)
        now = time.perf_counter()
        longest_s, last = max(longest_s, now - last), now
    assert longest_s < (last - started) / 2


@pytest.mark.parametrize(("num_words", "is_beyond"), [(3, False), (60, False), (2000, True), (50_000, True)])
async def test_text_that_cannot_fit_is_told_by_its_head(num_words: int, is_beyond: bool, tokenizer: Tokenizer) -> None:
    text, limit = "words and " * num_words, 100
    num_tokens = await tokenizer.count_beyond(text, limit)
    assert (num_tokens is not None) == is_beyond
    assert num_tokens is None or limit < num_tokens <= 8 * limit, "a head was enough"


async def test_text_of_few_tokens_is_no_more_than_it_is_though_it_is_long(tokenizer: Tokenizer) -> None:
    added = next(token for token in (tokenizer.bos_token, tokenizer.eos_token) if token is not None)
    text = added * 4000
    most = len(tokenizer.encode(text, add_special_tokens=False))
    assert most == 4000
    assert await tokenizer.count_beyond(text, most) is None
    assert await tokenizer.count_beyond(text, most // 200) is not None


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    reference = backend()
    reference.enable_truncation(max_length=2)
    reference.enable_padding(length=50)
    tokenizer = load_tokenizer(save_directory(tmp_path / "model", reference))
    assert tokenizer.decode(tokenizer.encode("The quick brown fox", add_special_tokens=True)) == "The quick brown fox"


@pytest.mark.parametrize(
    ("flags", "borders"),
    [
        ({}, ([1], [])),
        ({"add_bos_token": None}, ([1], [])),
        ({"add_bos_token": False}, ([], [])),
        ({"add_bos_token": True, "add_eos_token": True}, ([1], [2])),
    ],
)
def test_stated_border_flags_overrule_the_files_post_processor(
    flags: dict[str, bool | None], borders: tuple[list[int], list[int]], tmp_path: Path
) -> None:
    reference = backend()
    reference.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    tokenizer = load_tokenizer(save_directory(tmp_path / "model", reference, CONFIG | flags))
    plain = tokenizer.encode("dog", add_special_tokens=False)
    assert tokenizer.encode("dog", add_special_tokens=True) == [*borders[0], *plain, *borders[1]]


def test_tokens_that_only_the_configuration_knows_are_added(tmp_path: Path) -> None:
    config = CONFIG | {"added_tokens_decoder": {"600": {"content": "<think>", "special": False}}, "unk_token": "<unk>"}
    tokenizer = load_tokenizer(save_directory(tmp_path / "model", backend(), config))
    assert tokenizer.encode("<think><unk>", add_special_tokens=False) == [600, 601]
    assert tokenizer.decode([600, 601]) == "<think>"
    assert tokenizer.vocab_size == 602


def test_ids_with_holes_are_counted_to_the_largest(tmp_path: Path) -> None:
    folder = save_directory(tmp_path / "model", backend())
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["zzz"] = 900
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.vocab_size == 901
    assert tokenizer.decode([800, 900]) == "zzz"


def test_chat_template_files_come_before_the_configuration(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "from config"}, {"name": "tool_use", "template": "tools"}]
    folder = save_directory(tmp_path / "model", backend(), CONFIG | {"chat_template": named})
    assert load_tokenizer(folder).chat_templates == {"default": "from config", "tool_use": "tools"}
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "from json"}))
    assert load_tokenizer(folder).chat_template == "from config"
    (folder / "chat_template.jinja").write_text("from file", encoding="utf-8")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("rag", encoding="utf-8")
    assert load_tokenizer(folder).chat_templates == {"default": "from file", "tool_use": "tools", "rag": "rag"}


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("tokenizer.json", "{}", "is no tokenizer"),
        ("tokenizer_config.json", "[]", "is not a JSON object"),
        ("tokenizer_config.json", "{", "is not a JSON object"),
    ],
)
def test_file_that_cannot_be_used_is_named(file: str, content: str, named: str, tmp_path: Path) -> None:
    folder = save_directory(tmp_path / "model", backend(), CONFIG)
    (folder / file).write_text(content)
    with pytest.raises(ConfigError, match=f"{file}: {named}"):
        load_tokenizer(folder)


def test_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no tokenizer: neither tokenizer\.json nor tokenizer\.model"):
        load_tokenizer(tmp_path)


@pytest.fixture
def slow_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(train_sentencepiece().serialized_model_proto())
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


@pytest.mark.slow  # imports transformers in a child
def test_slow_tokenizer_is_converted_in_a_child_and_kept(slow_dir: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(slow_dir, cache_dir=tmp_path / "cache")
    reference = train_sentencepiece()
    for text in CORPUS:
        ids = tokenizer.encode(text, add_special_tokens=True)
        assert ids == [1, *reference.encode(text)]
        assert tokenizer.decode(ids) == text
    (cached,) = (tmp_path / "cache").iterdir()
    stamp = cached.stat().st_mtime_ns
    load_tokenizer(slow_dir, cache_dir=tmp_path / "cache")
    assert cached.stat().st_mtime_ns == stamp


def test_missing_extra_is_named(slow_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_directory, "_EXTRA_MODULES", ("nosuchpackage.module",))
    with pytest.raises(ConfigError, match=r"needs nosuchpackage\.module: pip install 'pagewire\[slow-tokenizers\]'"):
        load_tokenizer(slow_dir, cache_dir=tmp_path / "cache")


def test_cache_that_cannot_be_written_is_named(slow_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ConfigError, match=r"cache: can't keep a converted tokenizer: .*Set PAGEWIRE_CACHE"):
        load_tokenizer(slow_dir, cache_dir=tmp_path / "cache")


@pytest.mark.slow  # imports transformers in a child
def test_failed_conversion_says_why(slow_dir: Path, tmp_path: Path) -> None:
    (slow_dir / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(ConfigError, match=r"transformers can't convert its slow tokenizer: \w"):
        load_tokenizer(slow_dir, cache_dir=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_loading_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", sentencepiece_metadata(train_sentencepiece()))
    script = (
        "import sys; from pathlib import Path; from pagewire.frontend.tokenizer.tokenizer import load_tokenizer; "
        f"load_tokenizer(Path({str(path)!r})); print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"
