"""Small real vocabularies for tests: trained on the spot, saved as tokenizer.json or as the metadata of a GGUF file."""

from __future__ import annotations

import functools
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path

import gguf
import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind; they've done it 1234 times before.",
    "Hello world! Café déjà vu — 123 😊 naïve coöperation, Ærøskøbing, Straße.",
    "def main(argv):\n    for index in range(10):\n\t\tprint(f'{index:>4}')\n\n\nreturn None\r\n",
    "北京是中华人民共和国的首都。東京は日本の首都です。서울은 대한민국의 수도이다.",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया",
    "aaaa aaaaa aaaaaaaa ababab   spaces    and     more      spaces",
    "I'LL SAY IT'S WE'RE DON'T I'm you'd he'll she's 3.14159 1e-10 0x7F 1,000,000",
]
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

_FUZZ_RANGES = [
    (0x20, 0x7E), (0x20, 0x7E), (0x61, 0x7A), (0x30, 0x39), (0x09, 0x0D), (0x20, 0x20), (0xA0, 0x17F), (0x300, 0x36F),
    (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0x2000, 0x206F), (0x3040, 0x30FF), (0x4E00, 0x4EFF),
    (0xAC00, 0xACFF), (0xE000, 0xE010), (0xFF00, 0xFF5E), (0x1F300, 0x1F64F), (0x660, 0x669), (0x2160, 0x2180),
]  # fmt: skip
_FUZZ_WORDS = [
    "the", " dog", "'s", "'LL", "\u200d", "\ufe0f", "👨\u200d👩\u200d👧", "é", "e\u0301", "\r\n", "\n\n", "  ", "\t",
    "1234567", "٣٤٥", "北京", "한국", "<|im_start|>", "<s>", "▁", "a" * 9, "-" * 7, "\x00", "\ufeff", "ﬁ", "Ⅻ", "½",
]  # fmt: skip


def fuzz_strings(seed: int, count: int) -> list[str]:
    """Return `count` strings of letters, digits, spaces, marks, CJK, emoji and what tokenizers treat specially."""
    rng = random.Random(seed)
    return [_fuzz_string(rng) for _ in range(count)]


def _fuzz_string(rng: random.Random) -> str:
    parts: list[str] = []
    for _ in range(rng.randint(0, 12)):
        if rng.random() < 0.4:
            parts.append(rng.choice(_FUZZ_WORDS))
        else:
            low, high = rng.choice(_FUZZ_RANGES)
            parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 5))))
    return "".join(parts)


def train_byte_level(
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    *,
    normalizer: normalizers.Normalizer | None = None,
    ignore_merges: bool = False,
    vocab_size: int = 600,
) -> Tokenizer:
    """Train byte-level BPE on the corpus; `SPECIAL_TOKENS` are its first ids."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@functools.cache
def train_sentencepiece(*, add_dummy_prefix: bool = True) -> sentencepiece.SentencePieceProcessor:
    """Train a SentencePiece BPE model with byte fallback on the corpus, set up as Llama's."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 3),
        model_writer=model,
        model_type="bpe",
        vocab_size=600,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=add_dummy_prefix,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def write_gguf(path: Path, metadata: dict[str, object], architecture: str = "llama") -> Path:
    """Write a GGUF file without tensors, of `metadata` as the gguf package spells types."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
            case _:
                raise TypeError(f"{key}: {value!r}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_level_metadata(tokenizer: Tokenizer, pre: str) -> dict[str, object]:
    """Return the GGUF metadata that describes a trained byte-level vocabulary."""
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL_TOKENS else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
    }


def sentencepiece_metadata(processor: sentencepiece.SentencePieceProcessor) -> dict[str, object]:
    """Return the GGUF metadata that describes a SentencePiece model, as converters write it."""
    ids = range(processor.vocab_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.id_to_piece(token_id) for token_id in ids],
        "tokenizer.ggml.scores": [processor.get_score(token_id) for token_id in ids],
        "tokenizer.ggml.token_type": [_sentencepiece_type(processor, token_id) for token_id in ids],
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
    }


def _sentencepiece_type(processor: sentencepiece.SentencePieceProcessor, token_id: int) -> int:
    if processor.is_unknown(token_id):
        return 2
    if processor.is_control(token_id):
        return 3
    if processor.is_byte(token_id):
        return 6
    return 1


def save_directory(folder: Path, tokenizer: Tokenizer, config: dict[str, object] | None = None) -> Path:
    """Write `tokenizer` as a Hugging Face directory and return its path."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def cuts(rng: random.Random, items: Sequence[int]) -> list[list[int]]:
    """Cut `items` into random runs, some empty."""
    runs: list[list[int]] = []
    start = 0
    while start < len(items):
        length = rng.choice([0, 1, 1, 1, 2, 3, 7])
        runs.append(list(items[start : start + length]))
        start += length
    return runs
